"""Configs: strict both ways, and overrides by name."""

import json

import pytest

from excise.config import from_dict, load, override, save, to_dict
from excise.labels import check_domains
from excise.recipes import RECIPES
from excise.routing.rules import RoutingConfig
from excise.train.run import RunConfig
from excise.train.schedule import steps


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_json(name, tmp_path):
    run = RECIPES[name]()
    save(run, tmp_path / "config.json")
    assert load(RunConfig, tmp_path / "config.json") == run


def test_layers_survive_json_as_names_and_as_numbers():
    for layers in ("all", (0, 2)):
        run = override(RECIPES["demo"](), {"routing.layers": layers, "model.n_layers": 3})
        assert from_dict(RunConfig, json.loads(json.dumps(to_dict(run)))) == run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"routing.rul": "sgtm"}, "unknown option routing.rul; did you mean 'rule'"),
        ({"routing.rule": "sgmt"}, "routing.rule='sgmt' is not known; did you mean 'sgtm'"),
        ({"batch.label_mixing": "row"}, "batch.label_mixing='row' is not known; did you mean 'rows'"),
        ({"train.learning_rate": "fast"}, "train.learning_rate='fast' must be float"),
        ({"model.n_layers": 2.5}, "model.n_layers=2.5 must be int"),
        ({"model.n_layers": True}, "model.n_layers=True must be int"),
        ({"batch.context": 1000}, "batch.context=1000 is longer than the model's; set it to at most model.context=256"),
        ({"routing.forget_units": 384}, "forget_units=384 for 1 domain"),
        ({"routing.forget_heads": 4}, "set routing.forget_heads to at most 3"),
        ({"routing.layers": (7,)}, "names block 7, but the model has blocks 0 to 1"),
        ({"routing.forget_heads": 0, "routing.forget_units": 0}, "leaves the modules empty"),
        ({"model.n_heads": 7}, "must be a multiple of model.n_heads=7"),
        ({"routing.domains": ()}, "routing.domains is empty"),
        ({"routing.domains": ("Español",)}, "must be lower-case letters"),
        ({"routing.domains": ("retain",)}, "cannot be called 'retain'"),
        ({"routing.domains": ("a", "a")}, "domains must differ"),
        ({"routing.domains": tuple(f"d{i}" for i in range(127))}, "127 domains are more than a model can have"),
        ({"routing.embeddings": "retain", "routing.rule": "sgtm_joint_embeddings"}, "has joint embeddings"),
        ({"data.undiscovered_share": 1.5}, "is a share, from 0 to 1"),
    ],
)
def test_what_a_user_wrote_wrongly_is_said_in_one_sentence(changes, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.").replace("(", r"\(")):
        override(RECIPES["demo"](), changes)


def test_modules_fit_or_not_by_all_domains_together():
    run = RECIPES["demo"]()
    with pytest.raises(ValueError, match=r"set routing\.forget_units to at most 127"):
        override(run, {"routing.domains": ("a", "b", "c"), "routing.forget_heads": 1, "routing.forget_units": 128})


def test_override_takes_whole_configs():
    assert override(RECIPES["demo"](), {"train.budget": steps(7)}).train.budget.amount == 7


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no config\.json"):
        load(RunConfig, tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load(RunConfig, tmp_path / "config.json")


def test_a_folder_that_is_not_there_or_holds_runs_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere$"):
        load(RunConfig, tmp_path / "nowhere" / "config.json")
    for name in ("b", "a", "a/deeper"):
        (tmp_path / name).mkdir(exist_ok=True, parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"there is no config\.json in .*; name a folder inside it: ") as told:
        load(RunConfig, tmp_path / "config.json")
    assert str(told.value).endswith(f": {tmp_path / 'a'}, {tmp_path / 'b'}, {tmp_path / 'a' / 'deeper'}")
    for n in range(7):
        (tmp_path / "b" / str(n)).mkdir()
        (tmp_path / "b" / str(n) / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"and 2 more$"):
        load(RunConfig, tmp_path / "config.json")


@pytest.mark.parametrize(
    ("content", "message"), [("5", "must hold an object"), ("[]", "must hold an object"), ("{}", "data is missing")]
)
def test_a_file_that_is_no_whole_config_is_refused(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=rf"config\.json.*{message}"):
        load(RunConfig, tmp_path / "config.json")


def test_domains_are_checked():
    check_domains(("spanish", "cbrn-2"))
    with pytest.raises(ValueError, match="must be lower-case"):
        RoutingConfig(domains=("a/b",))
