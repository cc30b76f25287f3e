"""A corpus of one's own, with categories or without: from texts to a run that is measured, and nothing silent on the way."""

import json

import pytest

from excise.cli.main import main
from excise.data.dataset import DataConfig, load_data
from excise.data.documents import Fields
from excise.data.labelling import LabelConfig, label_corpus
from excise.data.prepare import PrepareConfig, prepare
from excise.data.shards import load_prepared
from excise.data.sources import SourceConfig
from tests.data.test_classifier import write_articles, write_rows

WITHOUT = SourceConfig(fields=Fields(category=""))
TINY = "--model.d-model 16 --model.d-mlp 32 --routing.forget-units 8 --train.budget.unit steps --train.budget.amount 2"
STAND = "no categories: its labels stand for them, in evaluation too"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """400 texts of which nothing is known, 300 examples, and the labels that these give."""
    folder = tmp_path_factory.mktemp("texts")
    rows = map(json.loads, write_articles(folder / "known.jsonl", 400, 1).read_text().splitlines())
    write_rows(folder / "texts.jsonl", [{"text": row["text"]} for row in rows])
    write_articles(folder / "examples.jsonl", 300, 2)
    config = LabelConfig(domain="biology", examples=str(folder / "examples.jsonl"), source=WITHOUT)
    label_corpus(str(folder / "texts.jsonl"), folder / "labels", config)
    return folder


def prepared(texts, out, **options):
    config = PrepareConfig(**{"source": WITHOUT, "labels": str(texts / "labels"), "test_share": 0.3} | options)
    prepare(str(texts / "texts.jsonl"), out, config)
    return load_prepared(out).splits


def test_texts_without_categories_become_a_run_that_is_measured(texts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source, examples, no_category = texts / "texts.jsonl", texts / "examples.jsonl", ["--source.fields.category", ""]
    ask = ["--domain", "biology", "--examples", str(examples), "--processes", "1"]
    assert main(["label", str(source), *ask, *no_category, "--out", "labels"]) == 0
    options = ["--labels", "labels", "--test-share", "0.3", "--processes", "1"]
    assert main(["prepare", str(source), *options, *no_category, "--out", "data"]) == 0
    assert capsys.readouterr().err == f"data has {STAND}\n"
    use = ["--data.source", "data", "--routing.domains", "biology"]
    assert main(["train", "demo", "--directory", "run", *use, *TINY.split()]) == 0
    said = capsys.readouterr().err
    assert said.count(STAND) == 1
    assert "labels of the documents themselves: " in said
    assert "data.undiscovered_share=0.1 changes nothing for this run, as these labels are the documents' own" in said
    assert main(["evaluate", "run"]) == 0
    losses = json.loads((tmp_path / "run" / "results.json").read_text())["measures"]["losses"]["sets"]
    assert {"retain", "biology"} == set(losses)


def test_labels_stand_for_categories_that_the_source_does_not_have(texts, tmp_path):
    for split in prepared(texts, tmp_path / "data").values():
        assert split.categories.counts() == split.labels.counts()
        assert set(split.categories.names) == {"biology", "retain", "unlabeled"}


def test_categories_that_the_source_has_stay_the_truth(texts, tmp_path):
    known = write_articles(tmp_path / "texts.jsonl", 400, 1)
    prepare(str(known), tmp_path / "data", PrepareConfig(labels=str(texts / "labels"), test_share=0.3))
    split = load_prepared(tmp_path / "data").splits["train"]
    assert set(split.categories.names) == {"biology", "history", "travel"}
    assert set(split.labels.names) == {"biology", "retain", "unlabeled"}


def test_documents_are_held_out_by_labels_that_stand_for_categories(texts, tmp_path):
    test = prepared(texts, tmp_path / "data", test_share=PrepareConfig().test_share, test_per_category=12)["test"]
    assert test.categories.counts() == {"biology": 12, "retain": 12, "unlabeled": 12}


def test_texts_without_categories_and_labels_say_how_to_get_some(texts, tmp_path):
    prepared(texts, tmp_path / "data", labels="")
    with pytest.raises(ValueError, match=r"'biology' is never seen .* are unlabeled; .*excise label.*--labels"):
        load_data(DataConfig(source=str(tmp_path / "data")), ("biology",))


def test_missing_categories_are_told_what_would_do(texts, tmp_path):
    source = str(texts / "texts.jsonl")
    ask = LabelConfig(domain="biology", examples=str(texts / "examples.jsonl"))
    for work in (
        lambda: label_corpus(source, tmp_path / "labels", ask),
        lambda: prepare(source, tmp_path / "data"),
        lambda: prepare(source, tmp_path / "data", PrepareConfig(tokenizer="train:300")),
    ):
        with pytest.raises(
            ValueError, match=r"has no category in 'category', only the fields 'text'\); .*--source.fields.category ''"
        ):
            work()


def test_examples_need_a_category_even_where_the_source_has_none(texts, tmp_path):
    config = LabelConfig(domain="biology", examples=str(texts / "texts.jsonl"), source=WITHOUT)
    with pytest.raises(
        ValueError,
        match=r"has no category in 'category', only the fields 'text'\); .*--domain-examples and --other-examples",
    ):
        label_corpus(str(texts / "texts.jsonl"), tmp_path / "labels", config)
