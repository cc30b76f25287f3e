"""Options that change nothing for a run: an error where they were asked for, a line where a recipe sets them."""

import logging

import pytest

from excise.cli.arguments import asked
from excise.config import override
from excise.data.dataset import load_data
from excise.recipes import RECIPES
from excise.train.idle import check_modules, check_options, mention_options
from tests.data.test_dataset import CATEGORIES, OWN, document
from tests.data.test_dataset import prepared as prepare_and_load

DEMO = override(RECIPES["demo"](), {"data.n_stories": 8, "data.n_test_stories": 8})


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Documents with labels, with categories alone, and labelled retain and unlabeled only."""
    folder = tmp_path_factory.mktemp("sources")
    without = [*CATEGORIES, document("english", "retain")]
    for name, train in {"own": OWN, "categories": CATEGORIES, "no_forget": without}.items():
        (folder / name).mkdir()
        prepare_and_load(folder / name, train, labels="simulated")
    return {name: str(folder / name / "data") for name in ("own", "categories", "no_forget")} | {"stories": "stories"}


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("categories", {"data.filter": "strict"}, "no more than weak where data.adjacent names no category"),
        ("no_forget", {"data.filter": "weak"}, "no document that it would leave out"),
        ("own", {"data.undiscovered_share": 0.2}, "these labels are the documents' own"),
        ("own", {"data.false_positive_rate": 0.1}, "these labels are the documents' own"),
        ("own", {"data.retain_share": 0.1}, "these labels are the documents' own"),
        ("categories", {"data.adjacent_retain_share": 0.1}, "data.adjacent names no category"),
        ("categories", {"data.general": ("english",)}, "data.adjacent names no category"),
        ("categories", {"data.undiscovered_share": 0.2, "data.filter": "perfect"}, "goes by the truth"),
        ("categories", {"data.forget_share": 0.5, "data.filter": "weak"}, "leaves out all that is labelled"),
        ("categories", {"data.n_stories": 7}, "data.source is a folder"),
        ("no_forget", {"routing.forget_weight": 0.5}, "nothing that is trained on is labelled with a domain"),
        ("stories", {"routing.forget_units": 32, "routing.rule": "none"}, "has no modules"),
        ("stories", {"routing.forget_tokens": 0.8, "routing.rule": "none"}, "has no modules"),
        ("stories", {"routing.layers": (0,), "routing.rule": "none"}, "has no modules"),
        ("stories", {"train.module_rate": 2.0, "routing.rule": "none"}, "has no modules"),
        ("stories", {"train.paper_faithful_optimizer": True, "routing.rule": "none"}, "has no modules"),
        ("stories", {"routing.forget_heads": 2, "routing.rule": "sgtm_joint_attention"}, "modules have no heads"),
    ],
)
def test_an_option_that_was_asked_for_and_changes_nothing_is_refused(sources, source, options, reason):
    run = override(DEMO, {"data.source": sources[source], **options})
    option = next(iter(options))
    with pytest.raises(ValueError, match=rf"{option}=.* would change nothing for this run, as .*{reason}"):
        check_options(run, load_data(run.data, run.routing.domains), options)


def test_options_that_count_and_defaults_are_nothing_to_speak_of(sources, caplog):
    neutral = {"routing.rule": "none", "routing.forget_tokens": 0.0, "routing.forget_weight": 1.0}
    for changes in (
        {},
        {"data.undiscovered_share": 0.2, "routing.forget_weight": 0.3},
        neutral,
        {"data.filter": "weak"},
    ):
        run = override(DEMO, changes)
        data = load_data(run.data, run.routing.domains)
        check_options(run, data, changes)
        mention_options(run, data)
    assert not caplog.text


def test_what_a_recipe_sets_for_nothing_is_mentioned_once(sources, caplog):
    run = override(DEMO, {"data.source": sources["own"]})
    with caplog.at_level(logging.WARNING):
        mention_options(run, load_data(run.data, run.routing.domains))
    (message,) = (record.message for record in caplog.records)
    assert message.startswith("data.undiscovered_share=0.1 changes nothing for this run, as these labels are the doc")


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("categories", {"data.labels": "given"}, "nothing is labelled 'spanish'; .*excise prepare --label"),
        ("no_forget", {}, "nothing is labelled 'spanish'"),
        ("own", {"data.filter": "weak"}, "data.filter=weak leaves out all that is labelled with it"),
        ("stories", {"data.filter": "weak"}, "data.filter=weak leaves out all that is labelled with it"),
    ],
)
def test_a_module_that_would_learn_from_nothing_is_refused(sources, source, options, reason):
    run = override(DEMO, {"data.source": sources[source], **options})
    with pytest.raises(ValueError, match=rf"the module of spanish would learn from nothing: {reason}"):
        check_modules(run, load_data(run.data, run.routing.domains))


def test_a_share_of_labels_that_leaves_a_module_nothing_is_a_wish():
    run = override(DEMO, {"data.undiscovered_share": 1.0})
    check_modules(run, load_data(run.data, run.routing.domains))


def test_options_are_found_on_a_command_line_however_they_are_written():
    assert asked(["--data.retain-share", "0.1", "--data.seed=3", "--data.forget_share", "-1", "x"]) == {
        "data.retain_share",
        "data.seed",
        "data.forget_share",
    }
