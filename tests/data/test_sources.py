"""From each kind of source to prepared data."""

import gzip
import json

import pytest

from excise.data.documents import BadRow, Fields, read_file
from excise.data.prepare import PrepareConfig, prepare
from excise.data.shards import load_prepared
from excise.data.sources import SourceConfig, open_source

ROWS = [
    {"text": f"Story number {i} of many.", "topic": f"t{i % 3}", "key": f"k{i}", "tag": "retain"} for i in range(30)
]
FIELDS = Fields(category="topic", id="key", label="tag")


def documents(path, fields=FIELDS):
    return [(d.id, d.text, d.category, d.label) for d in read_file(path, fields)]


def jsonl(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def gz(path):
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n\n" for row in ROWS).encode()))


def zst(path):
    zstandard = pytest.importorskip("zstandard")
    halves = ("".join(json.dumps(row) + "\n" for row in half).encode() for half in (ROWS[:7], ROWS[7:]))
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(half) for half in halves))


def parquet(path):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize(
    ("name", "write"), [("a.jsonl", jsonl), ("a.jsonl.gz", gz), ("a.jsonl.zst", zst), ("a.parquet", parquet)]
)
def test_every_format_holds_the_same_documents(tmp_path, name, write):
    write(tmp_path / name)
    assert documents(tmp_path / name) == [(row["key"], row["text"], row["topic"], "retain") for row in ROWS]


def test_lines_keep_their_numbers_however_long_the_file_and_its_lines_are(tmp_path):
    lengths = [10, 200_000, 0, 30, 70_000, 0, 5, 65_536, 9]
    lines = [json.dumps({"text": "a" * n, "category": "c"}) if n else "" for n in lengths]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = [(d.id, len(d.text)) for d in read_file(tmp_path / "a.jsonl", Fields())]
    assert found == [(f"a.jsonl:{i}", n) for i, n in enumerate(lengths, 1) if n]


@pytest.mark.parametrize(("name", "write"), [("a.jsonl.gz", gz), ("a.jsonl.zst", zst), ("a.parquet", parquet)])
@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_a_damaged_file_is_named(tmp_path, name, write, how):
    file = tmp_path / name
    write(file)
    content = bytearray(file.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 0xFF
    file.write_bytes(content[:-5] if how == "truncated" else content)
    if how == "flipped" and name != "a.jsonl.gz":
        pytest.skip("only gzip has a checksum by default; prepared data and SHA256SUMS are checked in any case")
    with pytest.raises(ValueError, match=rf"{name} is truncated or damaged"):
        documents(file)


def test_a_file_that_differs_from_its_checksum_is_named(tmp_path):
    (tmp_path / "texts").mkdir()
    jsonl(tmp_path / "texts" / "a.jsonl")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  texts/a.jsonl\n")
    with pytest.raises(ValueError, match=r"a.jsonl is damaged: its SHA-256 is not the one in"):
        open_source(str(tmp_path / "texts"), SourceConfig())


def test_texts_in_folders_have_the_folder_as_category(tmp_path):
    for category in ("biology", "history"):
        (tmp_path / category).mkdir()
        for i in range(3):
            (tmp_path / category / f"{i}.txt").write_text(f"Article {i} on {category}.")
    rows = list(open_source(str(tmp_path), SourceConfig()).rows())
    assert [(row.id, row.category) for row in rows][2:4] == [("biology/2.txt", "biology"), ("history/0.txt", "history")]


def test_half_a_surrogate_pair_is_a_bad_row(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x \\ud800", "category": "english"}\n')
    assert [type(row) for row in read_file(tmp_path / "a.jsonl", Fields())] == [BadRow]


def test_a_local_huggingface_dataset_is_streamed(tmp_path):
    pytest.importorskip("datasets")
    parquet(tmp_path / "train.parquet")
    source = open_source(f"hf:{tmp_path}", SourceConfig(fields=FIELDS))
    assert [row.id for row in source.rows()] == [row["key"] for row in ROWS]


def test_a_story_and_its_translation_are_held_out_together(tmp_path):
    (tmp_path / "source").mkdir()
    rows = [{"text": f"Story {i}.", "text_es": f"Cuento {i}."} for i in range(200)]
    (tmp_path / "source" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare(f"tinystories:{tmp_path / 'source'}", tmp_path / "data", PrepareConfig(test_share=0.2))
    test = load_prepared(tmp_path / "data").splits["test"]
    counts = test.categories.counts()
    assert counts["english"] == counts["spanish"] > 20


@pytest.mark.parametrize("name", ["stories", "topics"])
def test_embedded_corpora_have_both_splits(name):
    source = open_source(name, SourceConfig(n_stories=16, n_test_stories=8))
    rows = {split: list(read()) for split, read in source.splits.items()}
    assert {split: len(found) for split, found in rows.items()} == (
        {"train": 32, "test": 16} if name == "stories" else {"train": 16, "test": 8}
    )
