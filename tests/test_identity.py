"""Names of runs that survive new options, and configs that read on."""

import json
from dataclasses import field, make_dataclass
from functools import cache
from pathlib import Path

import pytest

from excise import identity as module
from excise.baselines.unlearning import UnlearningConfig
from excise.config import from_dict, override, to_dict
from excise.identity import NO_OUTCOME, Removed, Renamed, Was, defaults, digest, identity, read_on
from excise.recipes import RECIPES
from excise.train.run import RunConfig, TrainConfig
from excise.train.schedule import epochs

PINNED = Path(__file__).parent / "golden" / "defaults.json"
DEMO = RECIPES["demo"]()


@cache
def with_one_more(name):
    """The classes of a version in which training has one more option, whose default is 7."""
    more = make_dataclass("More", [(name, int, field(default=7))], bases=(TrainConfig,), frozen=True)
    later = make_dataclass("Later", [("train", more, field(default_factory=more))], bases=(RunConfig,), frozen=True)
    return later, more


def with_option(config, value=7, name="new_option"):
    """The config in that version."""
    later, more = with_one_more(name)
    return later(**{**vars(config), "train": more(**{**vars(config.train), name: value})})


def test_no_default_changes_without_a_line_in_the_table_of_what_it_was():
    today = {**defaults(RunConfig), **defaults(UnlearningConfig, "unlearning.")}
    pinned = json.loads(PINNED.read_text())
    for path, value in pinned.items():
        if not isinstance(module.BEFORE.get(path), Removed):
            assert path in today, f'{path} is gone: say so in identity.BEFORE, "{path}": Removed(...) or Renamed(...)'
            assert today[path] == value, (
                f'runs did not name {path}={value!r}: "{path}": Was({value!r}) in identity.BEFORE'
            )
    new = {path: value for path, value in today.items() if path not in pinned}
    assert not new, f"add what is new to the end of {PINNED.name}, which is never changed otherwise: {json.dumps(new)}"


def test_a_new_option_at_its_default_or_at_what_runs_did_before_it_changes_no_name(monkeypatch):
    before = digest(DEMO)
    assert digest(with_option(DEMO)) == before != digest(with_option(DEMO, 8))
    monkeypatch.setattr(module, "BEFORE", module.BEFORE | {"train.new_option": Was(8)})
    assert digest(with_option(DEMO, 8)) == before != digest(with_option(DEMO)), "today's default is named then"


def test_numbers_count_and_not_how_they_are_written():
    one, same = (override(DEMO, {"train.budget": epochs(amount)}) for amount in (3, 3.0))
    assert digest(one) == digest(same) != digest(override(DEMO, {"train.budget": epochs(3.5)}))
    assert digest(override(DEMO, {"train.warmup_steps": 9.0})) == digest(override(DEMO, {"train.warmup_steps": 9}))


def test_unlearning_is_a_run_of_its_own_by_what_differs_from_its_defaults():
    digests = [digest(DEMO, of) for of in (None, UnlearningConfig(), UnlearningConfig(steps=9))]
    assert len(set(digests)) == 3
    assert identity(DEMO, UnlearningConfig(steps=9)) == identity(DEMO) | {"unlearning": True, "unlearning.steps": 9}


def test_what_decides_no_outcome_is_a_field_that_there_is():
    paths = {f"{section}.{name}" for section, of in to_dict(RunConfig()).items() for name in of}
    assert paths >= NO_OUTCOME


def test_a_config_without_a_newer_field_reads_as_what_runs_did_before_it(monkeypatch):
    old = to_dict(DEMO)
    del old["data"]["n_stories"], old["train"]["budget"]["unit"]
    assert read_on(RunConfig, old)["data"]["n_stories"] == RunConfig().data.n_stories
    assert read_on(RunConfig, old)["train"]["budget"]["unit"] == "epochs"
    monkeypatch.setattr(module, "BEFORE", {"data.n_stories": Was(123)})
    assert from_dict(RunConfig, read_on(RunConfig, old)).data.n_stories == 123


def test_a_field_that_was_renamed_reads_on_and_renames_no_run(monkeypatch):
    old, new = with_option(DEMO, 8, "old_option"), with_option(DEMO, 8)
    name = digest(old)
    assert digest(new) != name
    monkeypatch.setattr(module, "BEFORE", module.BEFORE | {"train.old_option": Renamed("train.new_option")})
    assert digest(new) == name
    assert from_dict(type(new), read_on(type(new), to_dict(old))) == new


def test_a_field_that_moves_twice_and_into_another_section_keeps_its_value_and_its_first_name(monkeypatch):
    old = to_dict(DEMO) | {"stories": {"n": 77}}
    del old["data"]["n_stories"]
    moves = {"stories.n": Renamed("data.n"), "data.n": Renamed("data.n_stories")}
    monkeypatch.setattr(module, "BEFORE", module.BEFORE | moves)
    read = from_dict(RunConfig, read_on(RunConfig, old))
    assert read.data.n_stories == 77
    assert identity(read)["stories.n"] == 77


def test_a_field_that_is_gone_reads_on_where_it_meant_nothing(monkeypatch):
    monkeypatch.setattr(module, "BEFORE", {"train.dropout": Removed((0.0,))})
    old = to_dict(DEMO)
    for value in (0.0, 0):
        old["train"]["dropout"] = value
        assert from_dict(RunConfig, read_on(RunConfig, old)) == DEMO
    old["train"]["dropout"] = 0.1
    with pytest.raises(ValueError, match=r"option train\.dropout=0\.1 is no more, and only runs with 0\.0 read on"):
        read_on(RunConfig, old)
