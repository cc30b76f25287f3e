"""From a source to splits: labels, filters, and what is wrong with bad data."""

import gzip
import json

import numpy as np
import pytest

from excise.config import override
from excise.data.dataset import DataConfig, everything, load_data
from excise.data.prepare import PrepareConfig, prepare
from excise.labels import FIRST_DOMAIN_ID, RETAIN_ID, UNLABELED_ID
from excise.recipes.demo import demo_run
from excise.recipes.figures import bilingual_runs, topics_runs
from excise.recipes.figures.planned import Sources
from excise.recipes.paper import PAPER_RECIPES

DOMAINS = ("spanish",)


def label_counts(corpus):
    labels = corpus.labels
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


def test_a_share_of_the_forget_documents_is_trained_on_and_of_no_others():
    config = DataConfig(n_stories=200, n_test_stories=8, undiscovered_share=0.1, forget_share=0.25)
    whole, drawn = load_data(override(config, {"forget_share": 1.0}), DOMAINS), load_data(config, DOMAINS)
    assert label_counts(drawn.train) == [150 + 20, 50, 45]
    assert set(drawn.train.starts) < set(whole.train.starts)
    assert len(drawn.truth) == len(drawn.train)
    assert label_counts(load_data(everything(config), DOMAINS).train) == [0, 200, 200]


def test_a_module_without_any_forget_document_is_refused():
    with pytest.raises(ValueError, match="set it above 0"):
        DataConfig(forget_share=0.0)


def test_calibration_and_test_share_no_document():
    data = load_data(DataConfig(n_stories=4, n_test_stories=40), DOMAINS)
    for name in ("retain", "spanish"):
        texts = [
            {tuple(c.tokens[a : a + n].tolist()) for a, n in zip(c.starts, c.lengths, strict=True)}
            for c in (data.calibration[name], data.test[name])
        ]
        assert len(texts[0]) == 10
        assert len(texts[1]) == 30
        assert not texts[0] & texts[1]


def test_every_document_closes_with_the_end_of_text():
    data = load_data(DataConfig(n_stories=4, n_test_stories=8), DOMAINS)
    ends = data.train.tokens[data.train.starts + data.train.lengths - 1]
    assert np.all(ends == data.tokenizer.end_of_text)
    assert (data.train.tokens == data.tokenizer.end_of_text).sum() == len(data.train)


def write(folder, split, documents, compressed=False):
    lines = "".join(json.dumps(document) + "\n" for document in documents).encode()
    path = folder / f"{split}.jsonl{'.gz' if compressed else ''}"
    path.write_bytes(gzip.compress(lines) if compressed else lines)


def document(category, label="unlabeled", text="a few words"):
    return {"text": text, "category": category, "label": label}


TEST = [document("english"), document("spanish")] * 4


def prepared(tmp_path, train, test=TEST, **config):
    """A source of a few lines, prepared and loaded."""
    (tmp_path / "source").mkdir()
    write(tmp_path / "source", "train", train)
    write(tmp_path / "source", "test", test, compressed=True)
    prepare(str(tmp_path / "source"), tmp_path / "data", PrepareConfig(bad_rows=0))
    return load_data(DataConfig(source=str(tmp_path / "data"), **{"labels": "given", **config}), DOMAINS)


def test_given_labels_are_read_from_jsonl(tmp_path):
    train = [document("english", "retain"), document("spanish", "spanish"), document("spanish")]
    assert label_counts(prepared(tmp_path, train).train) == [1, 1, 1]


CATEGORIES = [document("english")] * 4 + [document("spanish")] * 3
OWN = [*CATEGORIES, document("english", "retain"), document("spanish", "spanish")]
WITHIN = [*CATEGORIES, document("english") | {"spans": [[0, 1, "spanish"]]}]


@pytest.mark.parametrize(
    ("train", "labels", "told"),
    [
        (CATEGORIES, "auto", "labels simulated from the categories: 3 unlabeled, 1 retain, 3 spanish"),
        (OWN, "auto", "labels of the documents themselves: 7 unlabeled, 1 retain, 1 spanish"),
        (OWN, "simulated", "labels simulated from the categories: 4 unlabeled, 1 retain, 4 spanish"),
        (WITHIN, "auto", "labels of the documents themselves: 8 unlabeled, 0 retain, 0 spanish, and others within"),
    ],
)
def test_labels_of_the_documents_count_where_there_are_any_and_the_data_say_so(tmp_path, train, labels, told):
    data = prepared(tmp_path, train, labels=labels)
    assert data.told.startswith(told)
    n_of_each = list(data.n_labelled.values())
    assert label_counts(data.train) == n_of_each
    assert label_counts(load_data(everything(DataConfig(source=str(tmp_path / "data"))), DOMAINS).train)[0] == 0


def test_what_a_filter_leaves_out_is_told_beside_the_labels(tmp_path):
    told = prepared(tmp_path, OWN, filter="weak").told
    assert told.endswith("7 unlabeled, 1 retain, 1 spanish; 1 of all not trained on")


def test_spans_give_their_tokens_a_label_of_their_own(tmp_path):
    text = "Maria went home. El gato duerme. Then she slept."
    spans = [[text.index("El"), text.index(" Then"), "spanish"]]
    data = prepared(tmp_path, [document("english", text=text) | {"spans": spans}, document("spanish", "spanish")])
    n = int(data.train.lengths[0])
    tokens, labels = data.train.tokens[0:n], data.train.token_labels[0:n]
    words = {label: data.tokenizer.decode(tokens[labels == label].tolist()) for label in (0, 2)}
    assert words[2].strip() == "El gato duerme."
    assert words[0] == "Maria went home. Then she slept.<|endoftext|>"


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([document("english", "spansh")], TEST, r"unknown label 'spansh'; did you mean 'spanish'"),
        (
            [document("english")],
            TEST,
            r"domain 'spanish' is never seen in the training data, whose categories are english",
        ),
        ([], TEST, r"holds no document to train on"),
        (
            [document("spanish", "spanish")],
            [document("english")] * 4,
            r"0 test documents of 'spanish' leave an empty .*; add documents to the test files",
        ),
        ([{"text": 5, "category": "english"}], TEST, r"the first: train.jsonl:1 has no text in 'text'"),
        ([{"text": "a"}], TEST, r"train.jsonl:1 has no category in 'category'"),
        ([document("english", 3)], TEST, r"train.jsonl:1 has the label 3, which is not a word"),
        ([document("english") | {"spans": [[3, 2, "spanish"]]}], TEST, r"train.jsonl:1 has spans that overlap"),
    ],
)
def test_bad_data_is_one_sentence(tmp_path, train, test, message):
    train = [*train, document("spanish", "spanish")] if "unknown label" in message else train
    with pytest.raises(ValueError, match=message):
        prepared(tmp_path, train, test)


def test_a_filter_that_leaves_nothing_is_an_empty_split(tmp_path):
    with pytest.raises(ValueError, match=r"train split is empty once data.filter='weak' is applied"):
        prepared(tmp_path, [document("spanish", "spanish")], filter="weak")


TOPICS = ("biology", "medicine", "history", "physics")


def topics(tmp_path, **config):
    """Ten documents of each of four categories for training, four for the test."""
    rows = [document(category, text=f"words about {category}") for category in TOPICS]
    (tmp_path / "source").mkdir()
    write(tmp_path / "source", "train", rows * 10)
    write(tmp_path / "source", "test", rows * 4)
    prepare(str(tmp_path / "source"), tmp_path / "data")
    options = {"adjacent": ("medicine",), "general": ("history",), "forget": ("life=biology",), **config}
    return load_data(DataConfig(source=str(tmp_path / "data"), **options), ("life",))


def test_groups_are_evaluated_apart(tmp_path):
    data = topics(tmp_path)
    assert {name: len(corpus) for name, corpus in data.test.items()} == {
        "retain": 9,
        "life": 3,
        "adjacent": len(data.test["adjacent"]),
        "general": len(data.test["general"]),
    }
    decoded = {
        data.tokenizer.decode(data.test["general"].tokens[s : s + n].tolist()) for s, n in places(data, "general")
    }
    assert decoded == {"words about history<|endoftext|>"}
    assert set(data.calibration) == set(data.test)


def places(data, name):
    return zip(data.test[name].starts, data.test[name].lengths, strict=True)


def test_the_strict_filter_leaves_out_adjacent_categories_too(tmp_path):
    assert len(topics(tmp_path, filter="strict").train) == 20


def test_shares_of_retain_by_group(tmp_path):
    data = topics(tmp_path, retain_share=0.5, adjacent_retain_share=0.1)
    assert label_counts(data.train) == [19, 10 + 1, 10]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"forget": ()}, r"domain 'life' is never seen .* of it: --data.forget life=CATEGORY"),
        ({"adjacent": ("medecine",)}, r"category 'medecine' is not in the data; did you mean 'medicine'"),
        ({"forget": ("life=biologie",)}, r"category 'biologie' is not in the data; did you mean 'biology'"),
        ({"forget": ("lief=biology",)}, r"data.forget names the domain 'lief'; did you mean 'life'"),
        ({"forget": ("biology",)}, r"data.forget has 'biology'; write domain=category"),
    ],
)
def test_unknown_categories_are_named(tmp_path, config, message):
    with pytest.raises(ValueError, match=message):
        topics(tmp_path, **config)


def test_a_folder_that_is_not_prepared_says_how_to_prepare_it(tmp_path):
    with pytest.raises(ValueError, match=r"holds no prepared data; make it with: excise prepare SOURCE --out"):
        load_data(DataConfig(source=str(tmp_path)), DOMAINS)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Data with 300 test documents: 240 of biology, 48 of history, 12 of medicine."""
    folder = tmp_path_factory.mktemp("many")
    rows = [document(category, text=f"text {i} about {category}") for category in TOPICS[:3] for i in range(240)]
    write(folder, "train", rows[::10])
    write(folder, "test", [*rows[:240], *rows[480:528], *rows[240:252]])
    prepare(str(folder), folder / "data")
    return DataConfig(source=str(folder / "data"), general=("history",), adjacent=("medicine",), calibration_share=0.5)


def held_out(config):
    """By split and category, where the documents begin."""
    data = load_data(config, ("biology",))
    found = {}
    for split, sets in (("calibration", data.calibration), ("test", data.test)):
        for name in ("retain", "biology"):
            categories = sets[name].categories
            for i, category in enumerate(categories.names):
                if (of := categories.index == i).any():
                    found[split, category] = set(sets[name].starts[of].tolist())
    return found


def test_a_limit_of_test_documents_takes_of_each_category_its_share_and_a_few_at_least(many, caplog):
    limited, whole = (held_out(override(many, {"n_test_documents": n})) for n in (100, 0))
    counts = {name: len(of) for name, of in limited.items()}
    assert sum(counts.values()) <= 100
    of_biology, of_history, of_medicine = (
        counts["calibration", c] + counts["test", c] for c in ("biology", "history", "medicine")
    )
    assert 70 <= of_biology <= 80
    assert 14 <= of_history <= 18
    assert 10 <= of_medicine <= 12, "of which its share would be 4"
    assert all(limited[name] <= whole[name] for name in whole), "nothing moves from one split to the other"
    assert limited == held_out(override(many, {"n_test_documents": 100}))
    assert limited != held_out(override(many, {"n_test_documents": 100, "seed": 1}))
    (line,) = {record.message for record in caplog.records}
    assert f"{sum(counts.values())} of the 300 test documents" in line
    assert "(data.n_test_documents=100; 0 reads all)" in line


@pytest.mark.parametrize("n", [1, 3, 7, 20, 299])
def test_no_limit_leaves_a_category_without_documents(many, n):
    found = held_out(override(many, {"n_test_documents": n}))
    assert len(found) == 6
    assert sum(map(len, found.values())) <= max(6, n)


def test_the_digest_of_held_out_documents_tells_how_many_are_read(many):
    digests = {load_data(override(many, {"n_test_documents": n}), ("biology",)).held_out_sha256 for n in (0, 300, 299)}
    assert len(digests) == 2, "300 are all of them"


def test_recipes_of_the_paper_read_all_test_documents_and_the_demo_does_without_saying_so():
    recipes = [make() for make in PAPER_RECIPES.values()]
    recipes += [
        module.setup(scale, Sources()) for module in (bilingual_runs, topics_runs) for scale in ("small", "paper")
    ]
    assert {run.data.n_test_documents for run in recipes} == {0}
    assert 2 * demo_run().data.n_test_stories <= demo_run().data.n_test_documents
