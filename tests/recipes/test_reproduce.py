"""Figures from runs: equal runs once, done runs never again, every plan valid, and numbers that can be checked by hand."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from shutil import rmtree
from typing import get_args

import numpy as np
import pytest
import torch

from excise import config as configs
from excise.baselines.unlearning import TOKEN_RESET, UnlearningConfig
from excise.config import override
from excise.data.packing import Corpus
from excise.evals.figure import Estimate, Scale, Table
from excise.evals.losses import STAGES
from excise.evals.relearning import AttackConfig
from excise.evals.results import Provenance, Results
from excise.labels import RETAIN, label_names
from excise.model.gpt import GPT, GPTConfig, n_parameters
from excise.recipes import reproduce as module
from excise.recipes.figures import FIGURES, bilingual_runs, topics_runs
from excise.recipes.figures.bilingual_runs import DOMAIN, gradient_routing, parameters_of, setup, sgtm, standard
from excise.recipes.figures.costs import tokens_of
from excise.recipes.figures.curves import is_behind_somewhere, leads, share_of_training
from excise.recipes.figures.estimates import claim_all_above, every, is_above, is_below, over_seeds
from excise.recipes.figures.measured import ALL_MEASURES, updates
from excise.recipes.figures.plan import choose, name_of, plan
from excise.recipes.figures.planned import Drawing, Figure, FinishedRun, PlannedAttack, PlannedRun, Sources
from excise.recipes.figures.tables import MATRICES, split_of
from excise.recipes.reproduce import attacks_in, draw, reproduce
from excise.train.run import RunConfig, RunDirectory, build_model
from tests.reference import naive_gradients
from tests.small import documents_of_all_labels, routing_for, small_model

BASE = setup("smoke", Sources())
SGTM, NO_FILTER = sgtm(BASE, 0.2), standard(BASE, 1.0, "smoke")
ATTACK = AttackConfig(steps=2, rows_per_step=2, rows_per_micro_batch=2, context=64, learning_rates=(1e-3,))


def tiny(config):
    """A run of a few steps."""
    changes = {
        "data.n_stories": 8,
        "data.n_test_stories": 9,
        "model.d_model": 16,
        "model.d_mlp": 32,
        "model.context": 64,
        "batch.context": 64,
        "routing.forget_units": 8,
        "train.evaluations": min(2, config.train.evaluations),
        "train.log_every": 1000,
    }
    return override(config, changes)


def table_of(runs, scale):
    losses = {key: [run.losses.sets[DOMAIN].calibrated for run in group] for key, group in runs.items()}
    return Drawing([Table("losses", ("run", "loss"), [(key, str(of)) for key, of in losses.items()])])


def figure(name, **runs):
    return Figure(name=name, title=name, section="", caption="", runs=lambda scale, sources: runs, draw=table_of)


def table(*figures):
    return {one.name: one for one in figures}


def make(figures, directory, **options):
    return reproduce(["all"], "smoke", directory=directory, shorten=tiny, figures=figures, **options)


@pytest.fixture
def trainings(monkeypatch):
    """The names of the runs that are trained."""
    found, train = [], module.train

    def counted(run, data, directory, listeners):
        found.append(directory.name)
        return train(run, data, directory, listeners)

    monkeypatch.setattr(module, "train", counted)
    return found


# --- Plans -----------------------------------------------------------------------------------------------------------


def test_equal_runs_of_figures_are_one_run_with_all_their_measures():
    followed = override(SGTM, {"train.evaluations": 4})
    kept = override(SGTM, {"train.keep_checkpoints": True, "train.checkpoint_every": 7})
    one = figure("one", a=PlannedRun(config=SGTM, measures=("losses", "gradient_norms")))
    two = figure("two", b=PlannedRun(config=followed, measures=("tradeoff",)), c=PlannedRun(config=NO_FILTER))
    three = figure("three", d=PlannedRun(config=kept))
    planned = plan(["one", "two"], "smoke", figures=table(one, two, three))
    shared, plain = planned.runs.values()
    assert shared.figures == {"one", "two"}
    assert plain.figures == {"two"}
    assert set(shared.planned.measures) == {"losses", "first_loss", "gradient_norms", "tradeoff"}
    train = shared.planned.config.train
    assert (train.evaluations, train.keep_checkpoints, train.checkpoint_every) == (4, True, 7), "also for the third"
    assert planned.groups["one"]["a"] == planned.groups["two"]["b"] == [shared.name]


@pytest.mark.parametrize(
    ("path", "value"), [("train.learning_rate", 1e-3), ("train.seed", 1), ("data.filter", "perfect")]
)
def test_runs_that_learn_otherwise_have_other_names(path, value):
    assert name_of(PlannedRun(config=NO_FILTER)) != name_of(PlannedRun(config=override(NO_FILTER, {path: value})))


def test_the_name_of_a_run_does_not_depend_on_how_it_is_followed_and_computed():
    other = override(NO_FILTER, {"train.compile": "on", "train.evaluations": 9, "train.checkpoint_every": 9})
    assert name_of(PlannedRun(config=NO_FILTER)) == name_of(PlannedRun(config=other))


def test_the_name_of_a_run_does_not_depend_on_where_its_data_lie():
    names = {
        name_of(PlannedRun(config=override(NO_FILTER, {"data.source": f"{folder}/bilingual"})))
        for folder in ("/a", "b")
    }
    assert len(names) == 1
    assert names.pop().startswith("no_filter-bilingual-seed0-")


def test_seeds_are_put_into_a_run_and_into_what_it_is_compared_with():
    attack = PlannedAttack(config=ATTACK, baseline=NO_FILTER)
    one = figure("one", a=PlannedRun(config=SGTM, seeds=3, attacks=(attack,), measures=("losses",)))
    planned = plan(["one"], "smoke", figures=table(one), seeds=2)
    runs = [planned.runs[name].planned for name in planned.groups["one"]["a"]]
    assert [(run.config.train.seed, run.config.data.seed) for run in runs] == [(0, 0), (1, 1)]
    assert [run.attacks[0].baseline.train.seed for run in runs] == [0, 1]
    names = list(planned.runs)
    assert len(names) == 4
    for run in runs:
        baseline = name_of(PlannedRun(config=run.attacks[0].baseline))
        assert names.index(baseline) < names.index(name_of(run)), "a run comes after those that it needs"


def test_runs_that_several_figures_need_come_first():
    other = PlannedRun(config=SGTM)
    shared = PlannedRun(config=NO_FILTER)
    planned = plan(["one", "two"], "smoke", figures=table(figure("one", a=other, b=shared), figure("two", c=shared)))
    assert list(planned.runs) == [name_of(shared), name_of(other)]


def test_runs_of_older_names_are_found_and_drawn_where_they_are(tmp_path):
    make(table(figure("one", a=PlannedRun(config=NO_FILTER))), tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    run.rename(run.with_name("of-old"))
    (tmp_path / "names.json").write_text(json.dumps({"runs": {run.name: "of-old"}, "methods": {}}))
    (drawn,) = make(table(figure("one", a=PlannedRun(config=NO_FILTER))), tmp_path)
    assert [line["name"] for line in json.loads(drawn.read_text())["runs"]] == ["of-old"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["of-old"]
    shutil.rmtree(tmp_path / "runs" / "of-old")
    with pytest.raises(ValueError, match=r"says that no_filter-\S+ is in runs/of-old, which is not there"):
        make(table(figure("one", a=PlannedRun(config=NO_FILTER))), tmp_path)


@pytest.mark.parametrize("scale", get_args(Scale))
def test_every_plan_is_of_valid_runs_without_any_data(scale):
    planned = plan(list(FIGURES), scale)
    for name, run in planned.runs.items():
        config = run.planned.config
        assert configs.from_dict(RunConfig, configs.to_dict(config)) == config
        assert set(run.planned.measures) <= set(ALL_MEASURES)
        assert name == name_of(run.planned)
    for name, groups in planned.groups.items():
        assert FIGURES[name].no_filter in groups, "so that it can be told whether the runs learned"
        (first, *_) = groups[FIGURES[name].no_filter]
        config = planned.runs[first].planned.config
        assert (config.data.filter, config.routing.rule) == ("none", "none")


def test_one_no_filter_run_serves_all_figures_of_the_bilingual_model():
    planned = plan([name for name in FIGURES if name in BILINGUAL], "smoke")
    (run,) = [run for name, run in planned.runs.items() if name.startswith("no_filter-stories")]
    assert run.figures == BILINGUAL


BILINGUAL = {"figure-3", "figure-4a", "figure-4b", "figure-5a", "figure-5b", "figure-11", "table-1"}


MAIN = (
    *("figure-1", "figure-3", "figure-4a", "figure-5a", "figure-6a", "figure-6b", "figure-7", "figure-8", "figure-9"),
    *("figure-10", "figure-12", "frontier", "batch-size"),
)
OTHERS = ("figure-5b", "figure-13", "frontier-relearning", "frontier-topics-relearning")


def test_main_results_have_three_seeds_but_for_smoke_and_others_one_but_for_the_paper_s_scale():
    for scale, main, others in (("smoke", 1, 1), ("small", 3, 1), ("paper", 3, 3)):
        planned = plan([*MAIN, *OTHERS], scale).groups
        for names, seeds in ((MAIN, main), (OTHERS, others)):
            assert {len(runs) for name in names for runs in planned[name].values()} == {seeds}


def test_models_of_several_sizes_have_the_rates_of_their_batches():
    for name, rates in (("figure-5b", bilingual_runs.SIZES_RATES), ("figure-9", {})):
        for run in plan([name], "small").runs.values():
            config = run.planned.config
            method = config.routing.rule if config.routing.rule == "sgtm" else f"{config.data.filter}_filter"
            known = {"none_filter": "no_filter", "weak_filter": "data_filter"}.get(method, method)
            assert config.batch.rows_per_step == bilingual_runs.SIZES_ROWS
            assert config.train.learning_rate == rates.get(known, topics_runs.SIZES_RATE)


def test_an_unknown_figure_is_told_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'figure-4a'"):
        choose(["figure-4"], {"figure-4a": FIGURES["figure-4a"], "table-1": FIGURES["table-1"]})


# --- Runs ------------------------------------------------------------------------------------------------------------


def test_figures_share_runs_and_a_done_run_is_never_opened_again(tmp_path, trainings, monkeypatch):
    one = figure("one", a=PlannedRun(config=SGTM), no_filter=PlannedRun(config=NO_FILTER))
    two = figure("two", b=PlannedRun(config=SGTM, measures=("cross_domain",)))
    paths = make(table(one, two), tmp_path)
    assert len(trainings) == len(set(trainings)) == 2
    first = [path.read_bytes() for path in paths]
    for checkpoints in tmp_path.glob("runs/*/checkpoints"):
        rmtree(checkpoints)
    for path in paths:
        path.unlink()
    for name in ("train", "load_data", "open_run"):
        monkeypatch.setattr(module, name, None)
    assert [path.read_bytes() for path in make(table(one, two), tmp_path)] == first


def test_a_run_that_travelled_without_checkpoints_is_trained_again_where_more_is_wanted_of_it(tmp_path, trainings):
    """On another machine it may be compiled where it was not, and its data lie elsewhere."""
    (first,) = make(table(figure("one", a=PlannedRun(config=NO_FILTER))), tmp_path)
    for checkpoints in tmp_path.glob("runs/*/checkpoints"):
        rmtree(checkpoints)
    before, elsewhere = first.read_bytes(), override(NO_FILTER, {"train.compile": "off"})
    trainings.clear()
    more = figure("one", a=PlannedRun(config=elsewhere, measures=("losses", "cross_domain")))
    (again,) = make(table(more), tmp_path)
    assert len(trainings) == 1
    assert json.loads(again.read_bytes())["panels"] == json.loads(before)["panels"]
    (config,) = tmp_path.glob("runs/*/config.json")
    assert json.loads(config.read_text())["train"]["compile"] == "off"


def test_a_run_that_begins_again_is_not_taken_for_done(tmp_path, monkeypatch):
    make(table(figure("one", a=PlannedRun(config=NO_FILTER))), tmp_path)
    for checkpoints in tmp_path.glob("runs/*/checkpoints"):
        rmtree(checkpoints)
    monkeypatch.setattr(module, "train", killed_at_once)
    more = figure("one", a=PlannedRun(config=NO_FILTER, measures=("losses", "cross_domain")))
    with pytest.raises(KeyboardInterrupt):
        make(table(more), tmp_path)
    assert not list(tmp_path.glob("runs/*/results.json"))


def killed_at_once(*_):
    raise KeyboardInterrupt


def test_an_unlearned_run_that_travelled_without_checkpoints_is_made_again(tmp_path):
    reset = PlannedRun(config=NO_FILTER, unlearning=UnlearningConfig(method=TOKEN_RESET))
    (first,) = make(table(figure("one", a=reset)), tmp_path)
    before = json.loads(first.read_bytes())["panels"]
    for checkpoints in tmp_path.glob("runs/*/checkpoints"):
        rmtree(checkpoints)
    more = replace(reset, measures=("losses", "cross_domain"))
    assert json.loads(make(table(figure("one", a=more)), tmp_path)[0].read_bytes())["panels"] == before


def test_a_killed_reproduction_goes_on(tmp_path, trainings, monkeypatch):
    one = figure("one", a=PlannedRun(config=SGTM), no_filter=PlannedRun(config=NO_FILTER))
    (whole,) = make(table(one), tmp_path / "whole")

    def killed(*_):
        raise KeyboardInterrupt

    trainings.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(module.ALL_MEASURES, "losses", killed)
        with pytest.raises(KeyboardInterrupt):
            make(table(one), tmp_path / "killed")
    assert len(trainings) == 1
    assert not (tmp_path / "killed" / "figures").exists()
    steps = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("runs/*/checkpoints/*/manifest.json")}
    (path,) = make(table(one), tmp_path / "killed")
    assert len(steps) == 1
    assert all(path.stat().st_mtime_ns == time for path, time in steps.items())
    assert json.loads(path.read_text())["panels"] == json.loads(whole.read_text())["panels"]


def test_a_figure_is_written_before_runs_that_only_others_need(tmp_path, monkeypatch):
    one, two = figure("one", a=PlannedRun(config=NO_FILTER)), figure("two", b=PlannedRun(config=SGTM))
    do = module.Workshop.do

    def checked(self, run, listeners):
        assert "two" not in run.figures or (tmp_path / "figures" / "one.json").exists()
        do(self, run, listeners)

    monkeypatch.setattr(module.Workshop, "do", checked)
    assert [path.stem for path in make(table(one, two), tmp_path)] == ["one", "two"]


def test_attacks_and_unlearning_are_kept_and_not_repeated(tmp_path, monkeypatch):
    """And checkpoints go when nothing needs them any more: not before the run that unlearns and the comparison."""
    attack = PlannedAttack(config=ATTACK, baseline=NO_FILTER)
    rmu = PlannedRun(config=NO_FILTER, unlearning=UnlearningConfig(steps=1), attacks=(attack,))
    compared = PlannedRun(config=SGTM, attacks=(attack,), measures=("token_losses",), against=NO_FILTER)
    one = figure("one", rmu=rmu, sgtm=compared, no_filter=PlannedRun(config=NO_FILTER))
    (path,) = make(table(one), tmp_path, keep_checkpoints=False)
    first = path.read_bytes()
    assert not list(tmp_path.glob("runs/*/checkpoints"))
    attacked = {run.name.split("-")[0]: attacks_in(run) for run in (tmp_path / "runs").iterdir()}
    assert {name: len(of) for name, of in attacked.items()} == {"rmu": 1, "sgtm": 1, "no_filter": 0}
    monkeypatch.setattr(module, "load_data", None)
    make(table(one), tmp_path)
    assert path.read_bytes() == first
    stronger = replace(compared, attacks=(replace(attack, config=replace(ATTACK, steps=3)),))
    planned = plan(["one"], "smoke", shorten=tiny, figures=table(figure("one", sgtm=stronger)))
    work = module.Workshop(planned, tmp_path / "runs")
    assert [work.is_done(run) for run in planned.runs.values()] == [True, False]


def test_a_run_whose_checkpoints_are_gone_is_trained_again_where_a_new_figure_needs_it(tmp_path, trainings):
    one = figure("one", no_filter=PlannedRun(config=NO_FILTER))
    make(table(one), tmp_path, keep_checkpoints=False)
    two = figure("two", sgtm=PlannedRun(config=SGTM, measures=("token_losses",), against=NO_FILTER))
    old, _ = make(table(one, two), tmp_path)
    assert [name.split("-")[0] for name in trainings] == ["no_filter", "no_filter", "sgtm"]
    (line,) = json.loads(old.read_text())["runs"]
    results = json.loads((tmp_path / "runs" / line["name"] / "results.json").read_text())
    assert line["checkpoint_sha256"] == results["provenance"]["checkpoint_sha256"], "and drawn again"


def test_of_the_baseline_of_an_attack_the_results_are_enough(tmp_path, trainings):
    make(table(figure("one", no_filter=PlannedRun(config=NO_FILTER))), tmp_path, keep_checkpoints=False)
    attack = PlannedAttack(config=ATTACK, baseline=NO_FILTER)
    make(table(figure("two", sgtm=PlannedRun(config=SGTM, attacks=(attack,)))), tmp_path)
    assert [name.split("-")[0] for name in trainings] == ["no_filter", "sgtm"]


def test_an_attack_is_judged_by_the_baseline_of_the_plan_though_it_was_made_before_that(tmp_path, trainings):
    """Search another rate for the baseline, and no attack need be made again."""
    found = []

    def drawn(groups, scale):
        found.append(groups["sgtm"][0].relearning)
        return table_of(groups, scale)

    def with_baseline(config):
        attack = PlannedAttack(config=ATTACK, baseline=config)
        return table(replace(figure("one", sgtm=PlannedRun(config=SGTM, attacks=(attack,))), draw=drawn))

    make(with_baseline(NO_FILTER), tmp_path, keep_checkpoints=False)
    make(with_baseline(override(NO_FILTER, {"train.learning_rate": 1e-6})), tmp_path)
    assert [name.split("-")[0] for name in trainings] == ["no_filter", "sgtm", "no_filter"]
    (before,), (after,) = found
    assert before["baseline_loss"] < after["baseline_loss"]
    assert before["baseline"]["run"] != after["baseline"]["run"]
    for old, new in zip(before["attacks"], after["attacks"], strict=True):
        assert old["points"] == new["points"]
        reached = (point["step"] for point in new["points"] if point["losses"][DOMAIN] <= after["baseline_loss"])
        assert new["relearning_steps"] == next(reached, None)
    assert after["relearning_steps"] == min(of["relearning_steps"] for of in after["attacks"]), "an untrained baseline"
    assert before["relearning_steps"] != after["relearning_steps"]


def test_a_figure_whose_runs_another_process_does_again_is_drawn_later(tmp_path, monkeypatch):
    groups, calls = module.Workshop.groups, []

    def vanished_at_first(work, name):
        calls.append(name)
        if len(calls) == 1:
            raise FileNotFoundError
        return groups(work, name)

    monkeypatch.setattr(module.Workshop, "groups", vanished_at_first)
    (drawn,) = make(table(figure("one", no_filter=PlannedRun(config=NO_FILTER))), tmp_path)
    assert drawn.exists()
    assert len(calls) == 2


def test_an_attack_can_start_from_a_matched_checkpoint(tmp_path):
    kept = override(standard(BASE, 0.2, "smoke"), {"train.keep_checkpoints": True, "train.checkpoint_every": 2})
    attack = PlannedAttack(config=ATTACK, baseline=NO_FILTER, match=SGTM)
    one = figure("one", weak=PlannedRun(config=kept, attacks=(attack,)))
    paths = make(table(one), tmp_path, keep_checkpoints=False)
    (weak,) = tmp_path.glob("runs/weak_filter*")
    (found,) = attacks_in(weak)
    assert found["matched_to"].startswith("sgtm-")
    assert make(table(one), tmp_path) == paths


def test_missing_data_are_told_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="no prepared data at 'bilingual'; write it with excise prepare"):
        reproduce(["figure-3"], "small", directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- Figures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    directory = tmp_path_factory.mktemp("smoke")
    paths = reproduce(["figure-4a", "table-1"], "smoke", directory=directory, shorten=tiny)
    return directory, {path.stem: json.loads(path.read_text()) for path in paths}


def test_two_figures_in_small_from_end_to_end(smoke):
    directory, figures = smoke
    tradeoff, updated = figures["figure-4a"], figures["table-1"]
    (plot,) = tradeoff["panels"]
    assert [series["method"] for series in plot["series"]] == [
        "sgtm",
        "gradient_routing",
        "data_filter",
        "perfect_filter",
        "no_filter",
        "equal",
    ]
    assert [len(series["points"]) for series in plot["series"]] == [2] * 5 + [4]
    assert [sample["language"] for sample in tradeoff["samples"]] == ["english"] * 3 + ["spanish"] * 3
    assert all(set(sample) == {"language", "prompt", "SGTM, full", "SGTM, ablated"} for sample in tradeoff["samples"])
    assert [(claim["holds"], claim["check"]) for claim in updated["claims"]] == [(True, True)] * 6
    assert len(list((directory / "runs").iterdir())) == 6, "no filter is shared"
    for line in tradeoff["runs"]:
        run = RunDirectory(directory / "runs" / line["name"])
        assert line["last_loss"] == run.metrics()[-1]["loss"]
        assert 8 < line["first_loss"] < 8.6, "about log 4096"
    assert set(tradeoff["configurations"]) >= {"no_filter", "perfect_filter"}


def test_runs_that_learned_little_check_the_pipeline_only(smoke):
    directory, figures = smoke
    assert figures["figure-4a"]["pipeline_check_only"]
    planned = plan(["table-1"], "smoke", shorten=tiny)
    groups = module.Workshop(planned, directory / "runs").groups("table-1")
    (run,) = groups["no_filter"]
    for share, expected in ((0.69, False), (0.71, True)):
        learned = {**groups, "no_filter": [replace(run, metrics=[{"loss": share * run.first_loss}])]}
        assert draw(FIGURES["table-1"], "smoke", learned).pipeline_check_only is expected


def test_tokens_are_estimated_before_a_run(smoke):
    directory, figures = smoke
    for line in figures["figure-4a"]["runs"]:
        estimated = tokens_of(RunDirectory(directory / "runs" / line["name"]).config())
        assert estimated == pytest.approx(line["tokens"], rel=0.03)


@pytest.mark.parametrize("rule", ["sgtm", "gradient_routing", "sgtm_joint_projection"])
def test_updates_are_the_norms_of_naive_gradients(rule):
    routing = routing_for(rule)
    model = small_model(routing)
    documents, labels = documents_of_all_labels(routing)
    for number, label in enumerate(label_names(routing.domains)):
        mine = [(document, of) for document, of in zip(documents, labels, strict=True) if of[0] == number]
        texts, token_labels = map(list, zip(*mine, strict=True))
        found = updates(model, Corpus.of(texts, token_labels), routing, model.config.context)
        gradients = naive_gradients(model, texts, token_labels, routing)
        for part, norm in found.items():
            mine = [name for name in gradients if name.endswith(f".{part}")]
            expected = torch.cat([gradients[name].flatten() for name in mine]).norm()
            size = torch.cat([dict(model.named_parameters())[name].detach().flatten() for name in mine]).norm()
            assert norm == pytest.approx(float(expected / size), rel=1e-4), (label, part)


def test_the_split_counts_every_head_and_unit_once():
    model = build_model(BASE)
    split = split_of(model)
    totals = {name: sum(sizes[i] for sizes in split.parts.values()) for i, name in enumerate(MATRICES)}
    heads, units, vocabulary = BASE.model.n_heads, BASE.model.d_mlp, BASE.model.vocabulary_size
    attention = {"norm_1": 2, "W_QKV": heads, "W_O": heads, "b_O": 1}
    mlp = {"norm_2": 2, "W_1": units, "b_1": units, "W_2": units, "b_2": 1}
    around = {"E": vocabulary, "P": BASE.model.context}, {"norm": 2, "b": vocabulary}
    assert totals == around[0] | attention | mlp | around[1]
    assert split.parts[f"forget/{DOMAIN}"] == [0, 0, 0, 1, 1, 0, 0, 64, 64, 64, 0, 0, 0]


def test_the_split_shows_what_is_joint_and_no_part_that_is_empty():
    (split,) = draw(FIGURES["figure-2"], "small", {}).panels
    joint = [name for name, size in zip(split.matrices, split.parts["joint"], strict=True) if size]
    assert joint == ["E", "P", "norm_1", "norm_2", "norm", "b"]
    retain = override(BASE, {"routing.embeddings": "retain", "routing.norms": "retain", "model.output_bias": False})
    split = split_of(build_model(retain))
    assert set(split.parts) == {"retain", f"forget/{DOMAIN}"}
    assert "b" not in split.matrices


def test_gradient_routing_has_modules_in_some_blocks_only():
    routing = gradient_routing(setup("small", Sources()), 0.0, "small").routing
    assert routing.layers == (0, 1, 2, 3)
    assert routing.embeddings == "joint"


@pytest.mark.parametrize("name", ["table-2", "table-3", "table-4", "table-5"])
def test_tables_of_the_recipes_agree_with_the_paper(name):
    made = draw(FIGURES[name], "smoke", {})
    assert made.panels
    assert all(claim.holds and claim.check for claim in made.claims)


def test_parameters_are_counted_as_a_model_has_them():
    size = GPTConfig(vocabulary_size=61, context=32, n_layers=3, d_model=24, n_heads=8, d_mlp=20)
    for config in (size, replace(size, output_bias=False)):
        assert parameters_of(config) == n_parameters(GPT(config))


def undiscovered(data):
    """The share of the Spanish documents that a run without modules is trained on, or that SGTM has no label for."""
    return {"none": 1.0, "perfect": 0.0}.get(data.filter, data.undiscovered_share)


def invented(planned, leakage=0.1, half=0.01):
    """A run that learns Spanish evenly, five nats from a million tokens, and SGTM this share of what it should not; half of
    an interval over documents."""
    config = planned.config
    plain = config.routing.rule == "none"
    share = undiscovered(config.data) if plain else config.data.undiscovered_share
    of_set = {RETAIN: 5.0 + (not plain) * 0.1, DOMAIN: 9.0 - 5.0 * share * (1 if plain else leakage)}
    sets = {
        name: {**dict.fromkeys(STAGES, loss), "intervals": dict.fromkeys(STAGES, (loss - half, loss + half))}
        | {"n_documents": 10, "n_tokens": 100}
        for name, loss in of_set.items()
    }
    tokens = {"labelled": 0 if plain else round(1e6 * (1 - share)), "unlabeled": round(1e6 * share)}
    losses = {"sets": sets, "categories": {}, "category_means": {}, "removed": [], "calibration_weights": {}}
    measures = {"losses": losses | {"forget_tokens": {DOMAIN: tokens}}, "first_loss": {"loss": 8.0}}
    source = Provenance("", config.method, 1, "", 1, 1.0, 1, config.train.seed, "", "", "", "float32", "", "")
    return FinishedRun(name_of(planned), config, Results(source, measures), [{"loss": 5.0}])


def drawn_from_invented(name, scale="smoke", **options):
    planned = FIGURES[name].runs(scale, Sources())
    return draw(FIGURES[name], scale, {key: [invented(run, **options)] for key, run in planned.items()})


@pytest.mark.parametrize("scale", get_args(Scale))
def test_leakage_is_read_off_the_curve_of_standard_runs(scale):
    for name in ("figure-5a", "figure-5b"):
        for leakage in (0.1, 0.4):
            made = drawn_from_invented(name, scale, leakage=leakage)
            found = [claim.ours.value for claim in made.claims if claim.unit == "of the undiscovered tokens"]
            assert found == pytest.approx([leakage] * len(found), rel=0.01)
    alike = next(claim for claim in made.claims if "decreases" in claim.text)
    assert alike.ours.value == pytest.approx(0, abs=1e-9)
    assert not alike.holds


def test_the_interval_of_a_leakage_knows_how_far_apart_its_seeds_are():
    planned = FIGURES["figure-5a"].runs("smoke", Sources())

    def width(*leakages):
        of_sgtm = {key: leakages if key.startswith("sgtm") else (0.0,) for key in planned}
        groups = {
            key: [invented(planned[key], leakage=leakage, half=1e-6) for leakage in of] for key, of in of_sgtm.items()
        }
        ours = draw(FIGURES["figure-5a"], "smoke", groups).claims[0].ours
        return ours.high - ours.low

    assert 4 * width(0.195, 0.205) < width(0.15, 0.25)


def test_training_without_forget_data_is_a_level_beside_the_logarithmic_curve():
    (plot,) = drawn_from_invented("figure-5a").panels
    assert plot.x_log
    standard, looked_up, ours = ([(point.x.value, point.y.value) for point in series.points] for series in plot.series)
    assert len(standard) == 4
    assert looked_up[0][0] == pytest.approx(min(x for x, _ in [*standard, *ours]) / 2)
    for x, loss in ours:
        assert np.interp(x, *zip(*looked_up, strict=True)) == pytest.approx(loss, abs=0.01), "it lies on that curve"
    assert plot.levels == {"No forget data": pytest.approx(9.0)}


def test_a_loss_above_training_without_forget_data_stands_at_the_edge():
    (plot,) = drawn_from_invented("figure-5a", leakage=0.0).panels
    *_, looked_up, ours = plot.series
    assert {point.x.value for point in ours.points} == {looked_up.points[0].x.value}


def test_a_curve_that_does_not_fall_is_told_and_not_drawn_on():
    planned = FIGURES["figure-5a"].runs("smoke", Sources())
    for name in ("figure-5a", "figure-5b"):
        groups = {key: [invented(planned["no_filter"])] for key in FIGURES[name].runs("smoke", Sources())}
        (claim,) = draw(FIGURES[name], "smoke", groups).claims
        assert claim.holds is None
        assert "no baseline curve" in claim.why


def test_figure_3_compares_methods_at_every_share():
    made = drawn_from_invented("figure-3")
    holds = {claim.text.split(" at ")[0]: claim.holds for claim in made.claims}
    assert list(holds.values()) == [None, None] + [True] * 6, "SGTM and Gradient Routing are invented alike"
    lines = {series.method: [point.y.value for point in series.points] for series in made.panels[1].series}
    assert lines["data_filter"] == pytest.approx([9 - 5 * share for share in (0, 0.01, 0.2, 0.4, 1)])


def test_shares_stand_at_equal_distances():
    for plot in drawn_from_invented("figure-3", "small").panels:
        assert plot.x_ticks == {"0": 0, "1": 1, "5": 2, "20": 3, "40": 4, "100": 5}
        for series in plot.series:
            assert [point.x.value for point in series.points] == list(plot.x_ticks.values())
            assert [point.text for point in series.points] == [f"{share} % undiscovered" for share in plot.x_ticks]


def test_the_surface_has_the_difference_of_each_pair():
    retain, forget = drawn_from_invented("figure-11").panels
    assert (forget.rows, forget.columns) == (["1", "0.6"], ["0", "0.36"]), "the best classifier at the top left"
    assert forget.values == [pytest.approx([0.0] * 2), pytest.approx([0.9 * 5 * 0.4] * 2)]
    assert retain.values == [pytest.approx([0.1] * 2)] * 2


# --- Claims ----------------------------------------------------------------------------------------------------------


def test_claims_hold_fail_or_stay_open_by_their_intervals():
    estimates = [Estimate(1, 0.5, 1.5), Estimate(-1, -1.5, -0.5), Estimate(0.1, -0.5, 0.7), Estimate(0.1)]
    assert [is_above(one) for one in estimates] == [True, False, None, True]
    assert [is_below(one) for one in estimates] == [False, True, None, False]
    assert [is_below(one, 2) for one in estimates] == [True] * 4
    assert [every(verdicts) for verdicts in ([True, True], [True, None], [None, False], [])] == [
        True,
        None,
        False,
        None,
    ]
    claim = claim_all_above("", "", estimates[:3], "", "")
    assert claim.ours == estimates[1]
    assert claim.holds is False


def test_intervals_over_seeds_are_students():
    assert over_seeds([1.0, 2.0, 3.0]).high == pytest.approx(2 + 4.3027 / 3**0.5, rel=1e-3)
    assert over_seeds([1.0]) == Estimate(1.0)
    assert over_seeds([1.0], 0.1) == Estimate(1.0, 1 - 0.196, 1 + 0.196)


def test_a_lead_is_at_equal_retain_loss():
    better, worse = [(0.5, 6.0, 8.0), (1.0, 4.0, 8.0)], [(0.5, 5.0, 7.0), (1.0, 3.0, 5.0)]
    assert leads(better, worse) == [2.0, 1.0], "at retain losses of 4 and 5"
    assert leads(worse, better) == [-2.0, -1.0]
    assert leads(better, [(1.0, 3.0, 5.0)]) == []
    assert share_of_training(worse, 4.0) == 0.75
    assert share_of_training(worse, 2.0) == 1.0


def test_seeds_that_are_behind_at_different_retain_losses_do_not_refute_a_lead():
    level = [(0.2, 6.0, 6.0), (0.6, 5.0, 7.0), (1.0, 4.0, 8.0)]
    dips = [
        [(share, retain, forget - 0.1 * (i == at)) for i, (share, retain, forget) in enumerate(level)]
        for at in range(3)
    ]
    assert [min(leads(dip, level)) for dip in dips] == pytest.approx([-0.1] * 3)
    assert not is_behind_somewhere(dips, [level] * 3)
    assert is_behind_somewhere(dips[:1] * 3, [level] * 3)
    apart = [[(share, retain + far, forget) for share, retain, forget in level] for far in (0, 5)]
    behind = [[(share, retain, forget - 0.5) for share, retain, forget in of] for of in apart]
    assert is_behind_somewhere(behind, apart), "in each seed, though these have no retain loss in common"


def test_the_library_needs_neither_tyro_nor_rich():
    code = "import sys, excise.recipes.reproduce; sys.exit(bool({'tyro', 'rich', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
