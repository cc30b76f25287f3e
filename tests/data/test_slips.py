"""What is told of the labels of prepared data, slips of the pen among them."""

import json

import pytest

from excise.data.documents import Fields
from excise.data.prepare import PrepareConfig, prepare
from excise.data.slips import slips_in, told_labels
from excise.data.sources import SourceConfig


def prepared(folder, rows, category="category"):
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": "a b c", **row}) + "\n" for row in rows))
    config = PrepareConfig(test_share=0, source=SourceConfig(fields=Fields(category=category)))
    return folder / "data", prepare(str(folder / "texts.jsonl"), folder / "data", config)


def row(category, label):
    return {"category": category, "label": label}


PLAIN = [row("english", "retain")] * 3 + [row("spanish", "spanish")] * 2 + [row("spanish", None)]


def test_labels_are_told_with_their_documents(tmp_path):
    told = told_labels(*prepared(tmp_path, PLAIN))
    assert told == "labels of the training documents: 3 retain, 2 spanish, 1 unlabeled"


def test_labels_within_documents_are_told_with_their_tokens(tmp_path):
    told = told_labels(*prepared(tmp_path, [{"category": "english", "spans": [[0, 2, "spanish"]]}]))
    assert told == "labels of the training documents: 1 unlabeled; of their tokens: 1 spanish"


def test_data_without_labels_say_what_training_does(tmp_path):
    assert told_labels(*prepared(tmp_path, [row("english", "")])).startswith("no document has a label of its own")


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (row("spanish", "spansih"), "label 'spansih' (1 document) is no category; did you mean 'spanish'?"),
        (row("spanish", "retian"), "label 'retian' (1 document) is no category; did you mean 'retain'?"),
        (row("spanish", "unlabelled"), "label 'unlabelled' (1 document) is no category; did you mean 'unlabeled'?"),
        (row("spanish", "cbrn"), "label 'cbrn' (1 document) is no category; to train with it, say which categories"),
        (row("spanish", None) | {"spans": [[0, 1, "spnish"]]}, "label 'spnish' (1 token) is no category; did you"),
    ],
)
def test_a_label_that_is_no_category_is_told(tmp_path, odd, said, caplog):
    (found,) = slips_in(*prepared(tmp_path, [*PLAIN, odd]))
    assert found.startswith(said)
    assert caplog.messages == [found], "preparing says it"


def test_labels_that_stand_for_categories_are_compared_with_more_frequent_ones(tmp_path):
    rows = [row("", label) for label in (*["spanish"] * 5, "retain", "spansih", "biology")]
    (found,) = slips_in(*prepared(tmp_path, rows, category=""))
    assert found.startswith("label 'spansih' (1 document) is much like 'spanish'")


def test_ordinary_labels_are_nothing_to_speak_of_and_many_odd_ones_not_spoken_of_one_by_one(tmp_path):
    for name, rows in (("plain", PLAIN), ("odd", [row("any", f"domain-{i}") for i in range(50)])):
        (tmp_path / name).mkdir()
        found = slips_in(*prepared(tmp_path / name, rows))
        assert len(found) == (6 if name == "odd" else 0)
