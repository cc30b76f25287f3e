"""Prepared data: the same bytes however it is made, resumed after any interruption, and never trained on when damaged."""

import gzip
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from excise.data.dataset import DataConfig, load_data
from excise.data.documents import Fields
from excise.data.packing import empty_shares
from excise.data.prepare import PrepareConfig, prepare
from excise.data.shards import load_prepared, read_manifest
from excise.data.sources import SourceConfig
from excise.data.stories import stories
from excise.data.tokens import story_tokenizer

CONFIG = PrepareConfig(shard_mb=0.02)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Some two hundred stories in both languages, in gzip and plain files, without a test split."""
    folder = tmp_path_factory.mktemp("source")
    told = list(stories(120, seed=3, split="train"))
    for i in range(0, 120, 3):  # many files, as no share is smaller than a file of this size
        some = told[i : i + 3]
        english = [{"text": story.english, "category": "english", "label": "retain"} for story in some]
        spanish = [{"text": story.spanish, "category": "spanish", "label": "spanish"} for story in some]
        (folder / f"en{i:03}.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, english)).encode()))
        (folder / f"es{i:03}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spanish))
    return folder


@pytest.fixture(scope="module")
def data(source, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "data"
    prepare(str(source), folder, CONFIG)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_every_document_is_there_once_with_its_category_and_label(source, data):
    prepared = load_prepared(data)
    found = []
    for split in prepared.splits.values():
        starts = np.cumsum(split.lengths) - split.lengths
        for i, (start, n) in enumerate(zip(starts, split.lengths, strict=True)):
            text = prepared.tokenizer.decode(split.tokens[start : start + n].tolist())
            category = split.categories.names[split.categories.index[i]]
            found.append((text, category, split.labels.names[split.labels.index[i]]))
    expected = [
        (story.english + "<|endoftext|>", "english", "retain") for story in stories(120, seed=3, split="train")
    ] + [(story.spanish + "<|endoftext|>", "spanish", "spanish") for story in stories(120, seed=3, split="train")]
    assert sorted(found) == sorted(expected)
    assert 2 <= len(prepared.splits["test"]) <= 30


def test_the_manifest_counts_what_is_there(source, data):
    manifest = read_manifest(data)
    told = list(stories(120, seed=3, split="train"))
    texts = [text for story in told for text in (story.english, story.spanish)]
    assert sum(shard.n_documents for shard in manifest.shards) == 240
    assert sum(shard.n_tokens for shard in manifest.shards) == sum(
        len(story_tokenizer().encode(text)) for text in texts
    )
    assert sum(shard.text_bytes for shard in manifest.shards) == sum(len(text.encode()) for text in texts)
    assert set(manifest.source["files"]) == {file.name for file in source.iterdir()}
    assert len(manifest.shards) > 8


@pytest.mark.parametrize("processes", [2, 3])
def test_any_number_of_processes_writes_the_same_bytes(source, data, tmp_path, processes):
    prepare(str(source), tmp_path / "data", CONFIG, processes=processes)
    assert contents(tmp_path / "data") == contents(data)


def test_ray_writes_the_same_bytes_and_does_the_share_of_a_lost_worker_again(source, data, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    script = Path(__file__).with_name("ray_prepare.py")
    subprocess.run([sys.executable, str(script), str(source), str(tmp_path / "data")], check=True, timeout=300)
    assert contents(tmp_path / "data") == contents(data)


def test_preparing_again_does_nothing(source, data):
    before = {file: file.stat().st_mtime_ns for file in data.iterdir()}
    prepare(str(source), data, CONFIG)
    assert {file: file.stat().st_mtime_ns for file in data.iterdir()} == before


def test_killed_at_ten_random_moments_it_resumes_to_the_same_bytes(source, tmp_path):
    many, out, moment = tmp_path / "source", tmp_path / "data", random.Random(0)
    for copy in range(6):  # so that there is much left to do when a busy machine gets round to the kill
        shutil.copytree(source, many / str(copy))
    command = [
        sys.executable,
        "-m",
        "excise.cli.main",
        "prepare",
        str(many),
        "--out",
        str(out),
        "--shard-mb",
        "0.003",
    ]
    for kill in range(10):
        running = subprocess.Popen(
            [*command, "--processes", str(1 + kill % 2)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        wanted = moment.randint(0, 3) + len(list(out.glob("*.share.json")))
        while running.poll() is None and len(list(out.glob("*.share.json"))) < wanted:
            pass
        time.sleep(moment.random() * 0.005)
        running.send_signal(signal.SIGKILL)
        running.communicate()
        assert running.returncode == -signal.SIGKILL, "it finished before it was killed"
    prepare(str(many), out, PrepareConfig(shard_mb=0.003))
    prepare(str(many), tmp_path / "uninterrupted", PrepareConfig(shard_mb=0.003))
    assert contents(out) == contents(tmp_path / "uninterrupted")


@pytest.mark.parametrize("what", ["tokens flipped", "record emptied"])
def test_a_share_damaged_between_runs_is_made_again(source, data, tmp_path, what):
    out = tmp_path / "data"

    def stop(shard):
        if shard.name == "train-00003":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(str(source), out, CONFIG, listener=stop)
    if what == "tokens flipped":
        flip(out / "train-00001.tokens.npy")
    else:  # as a loss of power may leave it
        (out / "train-00001.share.json").write_bytes(b"")
    prepare(str(source), out, CONFIG)
    assert contents(out) == contents(data)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("what", ["tokens", "documents"])
@pytest.mark.parametrize("how", ["flipped", "truncated", "missing"])
def test_a_damaged_shard_is_named_and_never_trained_on(data, tmp_path, what, how):
    shutil.copytree(data, tmp_path / "data")
    file = tmp_path / "data" / f"train-00001.{what}.npy"
    {
        "flipped": lambda: flip(file),
        "truncated": lambda: file.write_bytes(file.read_bytes()[:-1]),
        "missing": file.unlink,
    }[how]()
    with pytest.raises(ValueError, match=rf"train-00001.{what}.npy is (damaged|missing)"):
        load_data(DataConfig(source=str(tmp_path / "data")), ("spanish",))


@pytest.mark.parametrize("file", ["manifest.json", "tokenizer.json"])
def test_a_damaged_manifest_or_tokenizer_is_named(data, tmp_path, file):
    shutil.copytree(data, tmp_path / "data")
    path = tmp_path / "data" / file
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=file):
        load_data(DataConfig(source=str(tmp_path / "data")), ("spanish",))


def test_another_source_or_other_options_are_refused(source, data, tmp_path):
    with pytest.raises(ValueError, match=r"prepared from something else \(options differ\)"):
        prepare(str(source), data, PrepareConfig(shard_mb=0.03))
    with pytest.raises(ValueError, match=r"prepared from something else \(source, files"):
        prepare(str(source / "es000.jsonl"), data, CONFIG)


def test_a_folder_with_other_things_is_left_alone(source, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not empty and holds no prepared data"):
        prepare(str(source), tmp_path, CONFIG)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_failed_attempt_does_not_block_its_correction(tmp_path):
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(20)))
    with pytest.raises(ValueError, match="has no category"):
        prepare(str(tmp_path / "texts.jsonl"), tmp_path / "data")
    corrected = PrepareConfig(source=SourceConfig(fields=Fields(category="")))
    for out in ("data", "other"):
        prepare(str(tmp_path / "texts.jsonl"), tmp_path / out, corrected)
    assert contents(tmp_path / "data") == contents(tmp_path / "other")


def write_rows(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


GOOD = [{"text": f"text {i}", "category": ("english", "spanish", "french")[i % 3]} for i in range(60)]


@pytest.mark.parametrize(
    ("wrong", "mended", "options"),
    [
        ([*GOOD, {"text": 5}], GOOD, {}),
        ([*GOOD, {"text": 5}], GOOD, {"tokenizer": "train:300"}),
        ([*GOOD, {"text": "a", "category": "c", "label": "Forget me"}], GOOD, {"test_per_category": 2}),
    ],
)
def test_a_source_that_failed_is_mended_and_prepared_by_the_same_command(tmp_path, wrong, mended, options):
    file, config = tmp_path / "texts.jsonl", PrepareConfig(shard_mb=0.001, **options)
    with pytest.raises(ValueError, match="--bad-rows"):
        prepare(write_rows(file, wrong), tmp_path / "data", config)
    prepare(write_rows(file, mended), tmp_path / "data", config)
    prepare(str(file), tmp_path / "other", config)
    assert contents(tmp_path / "data") == contents(tmp_path / "other")


def test_a_wrong_text_field_is_told_by_the_fields_that_there_are_and_the_option(tmp_path):
    file = write_rows(tmp_path / "texts.jsonl", [{"body": "a b", "subject": "english"}])
    with pytest.raises(ValueError, match=r"only the fields 'body', 'subject'\); .*--source.fields.text NAME"):
        prepare(file, tmp_path / "data")
    fields = Fields(text="body", category="subject", label="lable")
    with pytest.raises(ValueError, match=r"no row has a label in 'lable'; .*--source.fields.label NAME"):
        prepare(file, tmp_path / "data", PrepareConfig(source=SourceConfig(fields=fields), test_share=0))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("stories", {"test_per_category": 5}, "--test-per-category 5 would change nothing, as the source has test doc"),
        ("stories", {"test_share": 0.1}, "--test-share 0.1 would change nothing, as the source has test documents"),
        ("FILE", {"test_share": 0.1, "test_per_category": 5}, "--test-share 0.1 would .* --test-per-category says how"),
        (
            "FILE",
            {"source": {"n_stories": 5}},
            "source.n_stories=5 would change nothing, as it is for stories and topics",
        ),
        ("FILE", {"source": {"topics": "t.csv"}}, "source.topics=t.csv would change nothing, as it is for wikipedia"),
        ("stories", {"source": {"fields": Fields(text="a")}}, "--source.fields.text a would change nothing"),
        ("FILE", {"label": ("retain=english", "spanish=english")}, "has a category twice"),
        ("FILE", {"label": ("retain",)}, "write retain=category,category or domain=category"),
        ("FILE", {"label": ("Español=spanish",)}, "must be lower-case letters"),
        ("FILE", {"label": ("retain=english",), "labels": "labels"}, "--labels does not go with it"),
        ("FILE", {"label": ("retain=englsh",)}, "names the category 'englsh'; did you mean 'english'"),
    ],
)
def test_options_that_change_nothing_or_contradict_one_another_are_refused(tmp_path, source, options, message):
    named = {"FILE": write_rows(tmp_path / "texts.jsonl", GOOD)}.get(source, source)
    of_source = SourceConfig(**options.get("source", {}))
    with pytest.raises(ValueError, match=message):
        prepare(named, tmp_path / "data", PrepareConfig(**options | {"source": of_source}))


def test_labels_come_from_categories_where_that_is_asked_for(tmp_path):
    file, asked = write_rows(tmp_path / "texts.jsonl", GOOD), ("spanish=spanish", "retain=english,german")
    write_rows(tmp_path / "texts.jsonl", [*GOOD, {"text": "a", "category": "german"}] * 2)
    prepare(file, tmp_path / "data", PrepareConfig(label=asked, test_share=0))
    split = load_prepared(tmp_path / "data").splits["train"]
    labels = [split.labels.names[i] for i in split.labels.index]
    categories = [split.categories.names[i] for i in split.categories.index]
    of = {"spanish": "spanish", "english": "retain", "german": "retain", "french": "unlabeled"}
    assert labels == [of[category] for category in categories]


def test_a_label_of_its_own_that_contradicts_the_one_of_its_category_is_named(tmp_path):
    rows = [{"text": "a", "category": "english", "label": label} for label in ("retain", "spanish")]
    with pytest.raises(ValueError, match=r"texts.jsonl:2 has the label 'spanish', and --label makes it 'retain'"):
        prepare(write_rows(tmp_path / "texts.jsonl", rows), tmp_path / "data", PrepareConfig(label=("retain=english",)))


@pytest.mark.parametrize("label", ["Spanish", "joint", "a/b", 0, False])
def test_a_label_that_no_run_could_know_is_a_bad_row(tmp_path, label):
    rows = [{"text": "a", "category": "spanish", "label": label}, {"text": "a", "spans": [[0, 1, label]]}]
    for row in rows:
        file = write_rows(tmp_path / "texts.jsonl", [{"category": "any", **row}])
        with pytest.raises(ValueError, match=r"texts.jsonl:1 has (the|a span with a) label"):
            prepare(file, tmp_path / "data")


def test_a_tokenizer_of_a_failed_attempt_is_not_used_again(source, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("excise.data.prepare.make_shards", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(str(source), tmp_path / "data", PrepareConfig(tokenizer="train:300"))
    assert (tmp_path / "data" / "tokenizer.json").exists()
    assert prepare(str(source), tmp_path / "data", PrepareConfig(tokenizer="train:400")).vocabulary_size == 400


def stop(*work):
    raise KeyboardInterrupt


def test_a_higher_limit_of_bad_rows_goes_on_where_the_lower_one_stopped(tmp_path):
    rows = [json.dumps({"text": f"text {i}", "category": "english"}) for i in range(19)]
    (tmp_path / "texts.jsonl").write_text("\n".join([*rows, "{"]))
    with pytest.raises(ValueError, match=r"--bad-rows"):
        prepare(str(tmp_path / "texts.jsonl"), tmp_path / "data")
    assert prepare(str(tmp_path / "texts.jsonl"), tmp_path / "data", PrepareConfig(bad_rows=0.1)).n_bad_rows == 1
    with pytest.raises(ValueError, match="options differ"):
        prepare(str(tmp_path / "texts.jsonl"), tmp_path / "data", PrepareConfig(bad_rows=0.01))


def test_what_is_half_prepared_from_something_else_says_what_would_do(source, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        prepare(str(source), tmp_path / "data", CONFIG, listener=stop)
    with pytest.raises(ValueError, match=r"half prepared .*\(options differ\); .*delete it, or choose another"):
        prepare(str(source), tmp_path / "data", PrepareConfig(shard_mb=0.03))


def test_bad_rows_are_counted_and_stop_the_run_past_a_limit(tmp_path):
    good = json.dumps({"text": "some words", "category": "english"}).encode()
    bad = [b"{", b'{"category": "english"}', b'{"text": "a"}', b'{"text": "\xff", "category": "english"}', b"3"]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join([*[good] * 95, *bad]))
    manifest = prepare(str(tmp_path / "rows.jsonl"), tmp_path / "data", PrepareConfig(bad_rows=0.05))
    assert (manifest.n_rows, manifest.n_bad_rows) == (100, 5)
    assert manifest.first_bad_rows == (
        "rows.jsonl:96 is not JSON",
        "rows.jsonl:97 has no text in 'text', only the fields 'category'",
        "rows.jsonl:98 has no category in 'category', only the fields 'text'",
        "rows.jsonl:99 is not UTF-8",
        "rows.jsonl:100 is not a JSON object",
    )
    with pytest.raises(ValueError, match=r"5 of 100 rows cannot be used, more than the limit of 4.0%"):
        prepare(str(tmp_path / "rows.jsonl"), tmp_path / "other", PrepareConfig(bad_rows=0.04))
    assert not (tmp_path / "other" / "manifest.json").exists()


def test_bad_rows_are_counted_alike_by_two_processes_and_after_an_interruption(tmp_path):
    (tmp_path / "rows").mkdir()
    for i in range(8):
        rows = [json.dumps({"text": f"{i} words " * 200, "category": "english"}), "{"]
        (tmp_path / "rows" / f"{i}.jsonl").write_text("\n".join(rows))
    config = PrepareConfig(bad_rows=0.5, shard_mb=0.001)

    with pytest.raises(KeyboardInterrupt):
        prepare(str(tmp_path / "rows"), tmp_path / "two", config, listener=stop)
    for out, processes in (("one", 1), ("two", 2)):
        manifest = prepare(str(tmp_path / "rows"), tmp_path / out, config, processes=processes)
        assert (manifest.n_rows, manifest.n_bad_rows) == (16, 8)
        assert manifest.first_bad_rows == tuple(f"{i}.jsonl:2 is not JSON" for i in range(5))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_tokenizer_can_be_trained_on_the_source(source, tmp_path):
    config = PrepareConfig(tokenizer="train:300")
    manifest = prepare(str(source), tmp_path / "out", config)
    assert manifest.vocabulary_size == 300
    assert prepare(str(source), tmp_path / "out", config) == manifest
    with pytest.raises(ValueError, match="options differ"):
        prepare(str(source), tmp_path / "out", PrepareConfig(tokenizer="train:400"))
    for wrong in ("train:", "train:many"):
        with pytest.raises(ValueError, match="write train:4096"):
            prepare(str(source), tmp_path / "wrong", PrepareConfig(tokenizer=wrong))


def test_held_out_documents_per_category(source, tmp_path):
    manifest = prepare(str(source), tmp_path / "data", PrepareConfig(test_per_category=7))
    split = load_prepared(tmp_path / "data").splits["test"]
    assert split.categories.counts() == {"english": 7, "spanish": 7}
    assert sum(shard.n_documents for shard in manifest.shards) == 240


def test_at_most_half_of_a_category_is_held_out(source, tmp_path):
    prepare(str(source), tmp_path / "data", PrepareConfig(test_per_category=5000))
    assert load_prepared(tmp_path / "data").splits["test"].categories.counts() == {"english": 60, "spanish": 60}


def test_prepared_stories_train_as_the_embedded_ones(tmp_path):
    config = PrepareConfig(source=SourceConfig(n_stories=12, n_test_stories=8))
    prepare("stories", tmp_path / "data", config)
    embedded = load_data(DataConfig(n_stories=12, n_test_stories=8), ("spanish",))
    mapped = load_data(DataConfig(source=str(tmp_path / "data")), ("spanish",))
    for a, b in ((embedded.train, mapped.train), *zip(embedded.test.values(), mapped.test.values(), strict=True)):
        assert np.array_equal(a.labels, b.labels)
        assert all(
            np.array_equal(a.tokens[s : s + n], b.tokens[s : s + n]) for s, n in zip(a.starts, a.lengths, strict=True)
        )


def test_packing_leaves_little_empty():
    random_lengths = np.random.default_rng(0).lognormal(6, 1, 5000).astype(np.int64) + 2
    alike = np.random.default_rng(0).integers(500, 650, 3000)
    for context in (512, 1024):
        assert empty_shares(random_lengths, context)[0] < 0.02
        assert empty_shares(alike, context)[0] < 0.02


def test_labels_beyond_256_in_a_shard_stay_what_they_are(tmp_path):
    names = [*(f"label-{i}" for i in range(300)), "spanish"]
    rows = ({"text": "a b", "category": "any", "label": name, "spans": [[0, 1, name]]} for name in names)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare(str(tmp_path / "texts.jsonl"), tmp_path / "data", PrepareConfig(test_share=0))
    split = load_prepared(tmp_path / "data").splits["train"]
    assert [split.labels.names[i] for i in split.labels.index] == names
    assert {split.token_labels.names[i] for i in split.token_labels.index} == set(names)


def strings_and_numbers(value, path=()):
    """Where each value of a JSON document stands, and the value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [pair for key, one in inner for pair in strings_and_numbers(one, (*path, key))] or [(path, value)]


def test_every_edited_value_of_a_manifest_is_noticed(data, tmp_path):
    text = (data / "manifest.json").read_text()
    for path, value in values_in(json.loads(text)):
        edited = inner = json.loads(text)
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = f"{value}x" if isinstance(value, str) else 1 if isinstance(value, dict | list) else value + 1
        (tmp_path / "manifest.json").write_text(json.dumps(edited))
        with pytest.raises(ValueError, match=r"manifest\.json is damaged .*; prepare the data again"):
            read_manifest(tmp_path)


def values_in(json_value, path=()):
    """Where each value of a JSON document stands, and the value."""
    inner = json_value.items() if isinstance(json_value, dict) else enumerate(json_value)
    for key, value in inner:
        if isinstance(value, dict | list) and value:
            yield from values_in(value, (*path, key))
        else:
            yield (*path, key), value


def test_data_prepared_before_manifests_had_digests_are_to_be_prepared_again(data, tmp_path):
    values = json.loads((data / "manifest.json").read_text())
    del values["sha256"]
    (tmp_path / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"no digest of itself.*; prepare the data again"):
        read_manifest(tmp_path)
