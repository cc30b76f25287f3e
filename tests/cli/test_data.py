"""excise prepare and excise inspect, as a user types them."""

import json

import pytest

from excise.cli.main import main


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rows = [
        {"text": "The cat sleeps. El gato duerme. The end.", "category": "english", "spans": [[16, 31, "spanish"]]},
        {"text": "Los perros corren por el parque.", "category": "spanish", "label": "spanish"},
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 10))
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    assert main(["prepare", str(folder), "--out", str(folder / "out"), "--processes", "1"]) == 0
    return folder / "out"


def test_progress_counts_the_documents_of_each_shard(tmp_path, capsys):
    sizes = ["--source.n-stories", "20", "--source.n-test-stories", "4", "--processes", "1"]
    assert main(["prepare", "stories", "--out", str(tmp_path / "out"), *sizes]) == 0
    counts = {words[0]: words[1] for words in map(str.split, capsys.readouterr().out.splitlines()) if len(words) > 2}
    assert (counts["train-00000"], counts["test-00000"]) == ("40", "8")


def test_categories_with_few_test_documents_are_named(tmp_path, capsys):
    for split, categories in (("train", ("common", "rare")), ("test", ("common",))):
        rows = [{"text": f"text {i}", "category": category} for i in range(30) for category in categories]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["prepare", str(tmp_path), "--out", str(tmp_path / "out"), "--processes", "1"]) == 0
    prepared = capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "out")]) == 0
    for said in (prepared, capsys.readouterr().out):
        assert "under 20 test documents of rare (0), of which" in said


def test_labels_from_categories_are_asked_for_one_by_one_and_counted(tmp_path, capsys):
    rows = [{"text": "a", "category": category} for category in ("biology", "history", "geography", "travel")]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = ["--label", "life=biology", "--label", "retain=history,geography", "--test-share", "0"]
    assert main(["prepare", str(tmp_path / "texts.jsonl"), "--out", str(tmp_path / "out"), *labels]) == 0
    said = capsys.readouterr()
    assert "labels of the training documents: 2 retain, 1 life, 1 unlabeled\n" in said.out
    assert "label 'life' (1 document) is no category; to train with it, say which" in said.err


def test_inspect_shows_counts_lengths_packing_and_documents(data, capsys):
    assert main(["inspect", str(data), "--category", "english", "--documents", "1"]) == 0
    shown = capsys.readouterr().out
    for words in ("Prepared data", "english", "spanish", "unlabeled", "empty when packed", "The cat sleeps. El gato"):
        assert words in shown


def test_documents_are_shown_with_the_labels_of_their_tokens_in_colour(data):
    from excise.cli.inspect import shown
    from excise.data.shards import load_prepared

    prepared = load_prepared(data)
    text = shown(prepared, prepared.splits["train"], 0)
    coloured = {span.style: text.plain[span.start : span.end] for span in text.spans}
    assert coloured["not bold red"].strip() == "El gato duerme."


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["inspect", "{data}", "--category", "englsh"], "there is no 'englsh' in this split; did you mean 'english'?"),
        (["inspect", "{data}", "--split", "trian"], "there is no split 'trian'; did you mean 'train'?"),
        (["inspect", "{data}/.."], "holds no prepared data; make it with: excise prepare"),
        (["prepare", "stories", "--out", "x", "--tokenizer", "n.json"], "there is no tokenizer at n.json"),
        (["prepare", "nowhere", "--out", "x"], "there is no file or folder nowhere"),
        (["prepare", "wikipedia:{data}", "--out", "x"], "Wikipedia needs its article-topic table"),
        (["prepare", "stories", "--out", "x", "--test-share", "2"], "test_share=2 is a share"),
        (["prepare", "stories", "--out", "x", "--engine", "rya"], "rya"),
    ],
)
def test_bad_input_is_one_sentence(data, capsys, args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([arg.format(data=data) for arg in args]) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert len(complaint.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()
