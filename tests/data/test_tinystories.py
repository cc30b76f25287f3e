"""TinyStories: two documents a story, from a folder or from the Hub."""

import gzip
import json
from types import SimpleNamespace

import pytest

from excise.data import tinystories
from excise.data.documents import BadRow, Document
from excise.data.tinystories import read_tinystories

STORIES = [
    {"text": "A cat sat.", "text_es": "Un gato se sentó."},
    {"text": "A dog ran.", "text_es": None},
    {"text": " ", "text_es": "Un pez nadó."},
]
FIRST = [
    Document("train-1-english", "A cat sat.", "english"),
    Document("train-1-spanish", "Un gato se sentó.", "spanish"),
]


def write_jsonl(path, rows):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".zst":
        data = pytest.importorskip("zstandard").compress(data)
    path.write_bytes(data)
    return path


def write_parquet(path, rows):
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write(path, rows):
    (write_parquet if path.suffix == ".parquet" else write_jsonl)(path, rows)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_a_story_is_an_english_and_a_spanish_document(tmp_path, ending):
    name = f"train-00000.{ending}"
    write(tmp_path / name, STORIES)
    assert list(read_tinystories(tmp_path, "train")) == [
        *FIRST,
        Document("train-2-english", "A dog ran.", "english"),
        BadRow(f"{name}:2", "has no text in 'text_es'"),
        BadRow(f"{name}:3", "has no text in 'text'"),
        Document("train-3-spanish", "Un pez nadó.", "spanish"),
    ]


def test_files_of_the_split_are_read_in_order_and_others_are_not(tmp_path):
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "train-00001-of-00002.jsonl", STORIES[:1])
    write_jsonl(tmp_path / "data" / "train-00000-of-00002.jsonl", STORIES[1:2])
    write_jsonl(tmp_path / "data" / "validation-00000-of-00001.jsonl", STORIES)
    write_jsonl(tmp_path / "retrained.jsonl", STORIES)
    (tmp_path / "train.md").write_text("about")
    rows = list(read_tinystories(tmp_path, "train"))
    ids = [row.id for row in rows if isinstance(row, Document)]
    assert ids == ["train-1-english", "train-2-english", "train-2-spanish"]
    assert rows == list(read_tinystories(str(tmp_path), "train"))
    assert len(list(read_tinystories(tmp_path, "validation"))) == 6


def test_one_file_is_read_whatever_its_name(tmp_path):
    path = write_jsonl(tmp_path / "stories.jsonl", STORIES[:1])
    assert list(read_tinystories(path, "train")) == FIRST


def test_a_folder_named_for_the_split_will_do(tmp_path):
    (tmp_path / "train").mkdir()
    write_jsonl(tmp_path / "train" / "0000.jsonl", STORIES[:1])
    assert list(read_tinystories(tmp_path, "train")) == FIRST


def test_what_is_not_there_is_named(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", STORIES)
    with pytest.raises(ValueError, match=r"has no file with 'test' in its name; it holds train\.jsonl"):
        list(read_tinystories(tmp_path, "test"))
    for missing in (tmp_path / "nowhere", f"{tmp_path}/nowhere", "./nowhere/at/all"):
        with pytest.raises(ValueError, match="does not exist; give a folder"):
            read_tinystories(missing, "train")


def test_a_truncated_file_is_an_error(tmp_path):
    path = write_jsonl(tmp_path / "train.jsonl.gz", STORIES)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"train\.jsonl\.gz is truncated or damaged"):
        list(read_tinystories(tmp_path, "train"))


def test_a_row_that_is_not_json_loses_both_documents(tmp_path):
    path = write_jsonl(tmp_path / "train.jsonl", STORIES[:1])
    path.write_bytes(b"{broken\n" + path.read_bytes())
    reasons = [row.reason for row in read_tinystories(tmp_path, "train") if isinstance(row, BadRow)]
    assert reasons == ["is not JSON", "is not JSON"]


def test_a_name_is_streamed_from_the_hub(monkeypatch):
    asked = []

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return iter(STORIES)

    monkeypatch.setattr(tinystories, "needs", lambda *_: SimpleNamespace(load_dataset=load_dataset))
    rows = list(read_tinystories("someone/stories:small", "train"))
    assert rows[:2] == FIRST
    assert rows[3] == BadRow("train:2", "has no text in 'text_es'")
    assert asked == [(("someone/stories", "small"), {"split": "train", "streaming": True})]


def test_a_name_that_the_hub_does_not_know_is_one_sentence(monkeypatch):
    def load_dataset(*_, **__):
        raise FileNotFoundError("Dataset 'a/b' doesn't exist on the Hub.\nMore words.")

    monkeypatch.setattr(tinystories, "needs", lambda *_: SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(ValueError, match=r"'a/b' is no folder here, and .* \(Dataset 'a/b' doesn't exist on the Hub\)"):
        list(read_tinystories("a/b", "train"))


@pytest.mark.filterwarnings("default")
def test_the_datasets_library_gives_the_same_documents(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets", reason="datasets on the Hub need the datasets library")
    folder = tmp_path / "stories"
    folder.mkdir()
    write_parquet(folder / "train.parquet", STORIES)
    hub = list(tinystories._documents(tinystories._hub_pairs(str(folder), "train"), "train"))
    local = list(read_tinystories(folder, "train"))
    assert [row for row in hub if isinstance(row, Document)] == [row for row in local if isinstance(row, Document)]
