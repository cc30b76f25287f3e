"""From a source to splits: labels, filters, and what is wrong with bad data."""

import gzip
import json

import numpy as np
import pytest

from excise.data.dataset import DataConfig, load_data
from excise.data.documents import Document
from excise.data.noise import simulate_labels
from excise.labels import FIRST_DOMAIN_ID, RETAIN_ID, UNLABELED_ID

DOMAINS = ("spanish",)


def label_counts(corpus):
    labels = corpus.document_labels()
    return [int((labels == label).sum()) for label in (UNLABELED_ID, RETAIN_ID, FIRST_DOMAIN_ID)]


def test_simulated_shares_are_exact_to_one_document():
    config = DataConfig(n_stories=200, n_test_stories=8, undiscovered_share=0.1, retain_share=0.25)
    assert label_counts(load_data(config, DOMAINS).train) == [150 + 20, 50, 180]


def test_filters_leave_out_what_is_labelled_or_what_is_true():
    def counts(which):
        config = DataConfig(n_stories=200, n_test_stories=8, undiscovered_share=0.1, filter=which)
        return label_counts(load_data(config, DOMAINS).train)

    assert counts("weak") == [170, 50, 0]
    assert counts("perfect") == [150, 50, 0]


def test_labels_of_different_seeds_differ_and_of_one_seed_do_not():
    documents = [Document(str(i), "", "spanish" if i % 2 else "english") for i in range(100)]

    def labels(seed):
        drawn = simulate_labels(documents, DOMAINS, undiscovered_share=0.3, retain_share=0.3, seed=seed)
        return [document.label for document in drawn]

    assert labels(1) == labels(1) != labels(2)


def test_calibration_and_test_share_no_document():
    data = load_data(DataConfig(n_stories=4, n_test_stories=40), DOMAINS)
    for name in ("retain", "spanish"):
        texts = [
            {tuple(c.tokens[a:b].tolist()) for a, b in zip(c.offsets, c.offsets[1:], strict=False)}
            for c in (data.calibration[name], data.test[name])
        ]
        assert len(texts[0]) == 10
        assert len(texts[1]) == 30
        assert not texts[0] & texts[1]


def test_every_document_closes_with_the_end_of_text():
    data = load_data(DataConfig(n_stories=4, n_test_stories=8), DOMAINS)
    ends = data.train.tokens[data.train.offsets[1:] - 1]
    assert np.all(ends == data.tokenizer.end_of_text)
    assert (data.train.tokens == data.tokenizer.end_of_text).sum() == len(data.train)


def write(folder, split, documents, compressed=False):
    lines = "".join(json.dumps(document) + "\n" for document in documents).encode()
    path = folder / f"{split}.jsonl{'.gz' if compressed else ''}"
    path.write_bytes(gzip.compress(lines) if compressed else lines)


def document(category, label="unlabeled", text="a few words"):
    return {"text": text, "category": category, "label": label}


TEST = [document("english"), document("spanish")] * 4


def test_given_labels_are_read_from_jsonl(tmp_path):
    write(tmp_path, "train", [document("english", "retain"), document("spanish", "spanish"), document("spanish")])
    write(tmp_path, "test", TEST, compressed=True)
    data = load_data(DataConfig(source=str(tmp_path), labels="given"), DOMAINS)
    assert label_counts(data.train) == [1, 1, 1]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([document("english", "spansh")], TEST, r"train.jsonl:1: unknown label 'spansh'; did you mean 'spanish'"),
        (
            [document("english")],
            TEST,
            r"domain 'spanish' is never seen in the training data, whose categories are english",
        ),
        ([], TEST, r"the train split is empty"),
        ([document("spanish", "spanish")], [document("english")] * 4, r"0 test documents of 'spanish' leave an empty"),
        ([{"text": 5, "category": "english"}], TEST, r"train.jsonl:1 has no text field 'text'"),
        ([{"text": "a"}], TEST, r"train.jsonl:1 has no text field 'category'"),
        ([document("english", 3)], TEST, r"train.jsonl:1 has the label 3; a label is a word"),
    ],
)
def test_bad_data_is_one_sentence(tmp_path, train, test, message):
    train = [*train, document("spanish", "spanish")] if "unknown label" in message else train
    write(tmp_path, "train", train)
    write(tmp_path, "test", test)
    with pytest.raises(ValueError, match=message):
        load_data(DataConfig(source=str(tmp_path), labels="given"), DOMAINS)


def test_a_filter_that_leaves_nothing_is_an_empty_split(tmp_path):
    write(tmp_path, "train", [document("spanish", "spanish")])
    write(tmp_path, "test", TEST)
    with pytest.raises(ValueError, match=r"train split is empty once data.filter='weak' is applied"):
        load_data(DataConfig(source=str(tmp_path), labels="given", filter="weak"), DOMAINS)


def test_lines_that_are_not_json_are_named(tmp_path):
    (tmp_path / "train.jsonl").write_text("{\n")
    write(tmp_path, "test", TEST)
    with pytest.raises(ValueError, match=r"train.jsonl:1 is not JSON"):
        load_data(DataConfig(source=str(tmp_path)), DOMAINS)
