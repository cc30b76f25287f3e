"""`excise report`: one page from a reproduction or from any runs, and one sentence where there is neither."""

import dataclasses
import json
import re
import shutil

import pytest

from excise.cli.main import main
from excise.evals.tables import TABLES
from tests.evals.runs import PLAIN, copy_of, evaluated, results_of, train_run
from tests.report.example_figures import all_figures, figure_1
from tests.report.test_reproduction import visible_text
from tests.train.test_checkpoint import reseal


@pytest.fixture
def reproduction(tmp_path):
    (folder := tmp_path / "reproduction" / "figures").mkdir(parents=True)
    for figure in all_figures():
        (folder / f"{figure.name}.json").write_text(json.dumps(dataclasses.asdict(figure)))
    return folder.parent


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """SGTM with two seeds and samples, and no filter, all followed during training."""
    folder = tmp_path_factory.mktemp("runs")
    evaluated(train_run(folder / "no_filter", **PLAIN))
    evaluated(train_run(folder / "sgtm"))
    sample = {"prompt": "The whale", "seed": 0, "written": {"full": " swims.", "ablated": " is a stone."}}
    results = results_of(folder / "sgtm")
    results["measures"]["samples"] = [sample]
    (folder / "sgtm" / "results.json").write_text(json.dumps(results))
    copy_of(folder / "sgtm", folder / "seed-1", {"train.seed": 1}, {"provenance/run": "seed-1"})
    for run in folder.iterdir():
        lines = (run / "metrics.jsonl").read_text().splitlines()
        losses = {name: {"before": 7.0, "ablated": 7.5, "calibrated": 7.25} for name in ("retain", "biology")}
        record = json.dumps(json.loads(lines[1]) | {"losses": losses})
        (run / "metrics.jsonl").write_text("\n".join([lines[0], record, *lines[2:]]) + "\n")
    return folder


def test_a_reproduction_becomes_a_page_and_a_file_for_each_figure(reproduction, tmp_path, capsys):
    assert main(["report", str(reproduction), "--out", str(tmp_path / "out"), "--formats", "svg"]) == 0
    written = [line.removeprefix(f"wrote {tmp_path / 'out'}/") for line in capsys.readouterr().out.splitlines()]
    assert written == ["report.html", *(f"figures/{figure.name}.svg" for figure in all_figures())]
    assert all((tmp_path / "out" / name).exists() for name in written)
    assert "2 of 4 claims of the paper hold" in (tmp_path / "out" / "report.html").read_text()


def test_runs_are_compared_from_their_files_alone(runs, tmp_path):
    bare = tmp_path / "bare"
    for run in runs.iterdir():
        (bare / run.name).mkdir(parents=True)
        for name in ("config.json", "results.json", "metrics.jsonl"):
            shutil.copy(run / name, bare / run.name)
    named = [str(bare / name) for name in ("no_filter", "seed-1", "sgtm")]
    assert main(["report", *named, "--out", str(tmp_path / "named")]) == 0
    assert main(["report", str(bare), "--out", str(tmp_path / "folder")]) == 0
    page = (tmp_path / "named" / "report.html").read_text()
    assert page == (tmp_path / "folder" / "report.html").read_text()
    text = visible_text(page)
    assert "3 runs compared" in text
    biology = results_of(runs / "sgtm")["measures"]["losses"]["sets"]["biology"]
    assert re.search(rf"sgtm biology {biology['before']:.1f}\d* \[", text)
    assert f"seed-1, sgtm biology {biology['before']:.3f} ± 0.000" in text, "seeds"
    assert text.count("50% of training 7.25 7.25") == 3, "what was followed during training"
    assert "The whale is a stone." in text
    assert "routing.rule none sgtm sgtm" in text


def test_runs_that_were_not_evaluated_are_left_out_and_named(runs, tmp_path, capsys):
    folder = tmp_path / "folder"
    shutil.copytree(runs / "no_filter", folder / "evaluated")
    shutil.copytree(runs / "no_filter", folder / "bare", ignore=shutil.ignore_patterns("results.json"))
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    assert str(folder / "bare") in capsys.readouterr().err
    assert "1 run compared" in (tmp_path / "out" / "report.html").read_text()


def test_a_run_that_was_made_of_another_says_so_and_is_not_counted_as_training(runs, tmp_path):
    shutil.copytree(runs / "no_filter", tmp_path / "made" / "no_filter")
    unlearned = copy_of(
        runs / "no_filter", tmp_path / "made" / "rmu", {}, {"provenance/run": "rmu", "provenance/method": "rmu"}
    )
    (unlearned / "metrics.jsonl").unlink()
    (unlearned / "unlearning.json").write_text(json.dumps({"method": "rmu", "steps": 7}))
    reseal(unlearned)
    assert main(["report", str(tmp_path / "made"), "--out", str(tmp_path / "out")]) == 0
    text = visible_text((tmp_path / "out" / "report.html").read_text())
    assert f"trained on {results_of(runs / 'no_filter')['provenance']['tokens']:,} tokens in all" in text
    assert "unlearning.method – rmu unlearning.steps – 7" in text
    assert re.search(r"rmu 0 [\d,]+ 4 [\d,]+ – –", text), "no losses of a training of its own"
    assert "standard deviation over seeds" not in text, "nor another seed"


def test_runs_of_one_name_are_told_apart_by_their_folders_and_each_is_there_once(runs, tmp_path):
    for folder in ("a", "b"):
        shutil.copytree(runs / "sgtm", tmp_path / folder / "sgtm")
    copy_of(runs / "no_filter", tmp_path / "b" / "no_filter", {}, {"provenance/evaluated_on_sha256": "other"})
    named = [str(tmp_path / name) for name in ("a/sgtm", "b", "b/../a/sgtm")]
    assert main(["report", *named, "--out", str(tmp_path / "out")]) == 0
    text = visible_text((tmp_path / "out" / "report.html").read_text())
    assert "3 runs compared" in text
    assert re.search(r"a/sgtm biology \d.* b/sgtm biology \d", text)
    assert "The test documents of a/sgtm, b/sgtm and of no_filter differ" in text


def test_runs_with_different_tokenizers_are_not_compared(runs, tmp_path, capsys):
    copy_of(runs / "sgtm", tmp_path / "other", {}, {"provenance/tokenizer_sha256": "another"})
    assert main(["report", str(runs / "sgtm"), str(tmp_path / "other"), "--out", str(tmp_path / "out")]) == 2
    message = f"{runs / 'sgtm'} and {tmp_path / 'other'} have different tokenizers, so that their losses per token"
    assert message in capsys.readouterr().err


def attack_of(rates, strongest, **changes):
    """An attack in three evaluations at each rate, as `excise attack` writes it."""
    attacks = [
        {"learning_rate": rate, "points": [{"step": s, "losses": {"biology": 9 - 1000 * rate * s}} for s in (0, 1, 2)]}
        for rate in rates
    ]
    return {
        "config": {"method": "full", "n_documents": 0},
        "domain": "biology",
        "ablation": "none",
        "attacks": attacks,
        "strongest": strongest,
        "at_edge": False,
        "baseline": {"run": "no_filter"},
        "baseline_loss": 4.25,
        "lowest_loss": 7.0,
        "lowest_at": 2,
        "relearning_steps": None,
    } | changes


def test_all_that_was_measured_of_a_run_is_in_its_report(runs, tmp_path):
    several = tmp_path / "several"
    found = {
        "sgtm": attack_of([1e-3, 2e-4], 1e-3, ablation="zero"),
        "no_filter": attack_of([1e-3], 1e-3, config={"method": "lora", "n_documents": 7}),
    }
    removed = {"rows": [{"removed": ["biology"], "losses": {"retain": 3.5, "biology": 8.5}}]}
    for name, attack in found.items():
        shutil.copytree(runs / name, several / name)
        results = results_of(several / name)
        results["measures"] |= {"relearning": [attack], "cross_domain": removed}
        (several / name / "results.json").write_text(json.dumps(results))
    assert main(["report", str(several), "--out", str(tmp_path / "out"), "--formats", "svg"]) == 0
    text = visible_text((tmp_path / "out" / "report.html").read_text())
    assert "sgtm, all parameters, module zeroed 1 8 sgtm, all parameters, module zeroed 2 7" in text, "the strongest"
    assert "no_filter, LoRA, 7 documents" in text
    assert "no_filter 4.25" in text, "the goal as a line"
    for name, measured in (("relearning", [found["sgtm"]]), ("cross_domain", removed)):
        ((row,),) = (table.rows for table in TABLES[name](measured))
        assert " ".join(["sgtm", *map(str, row)]) in text
    assert text.count("Loss on each set") == 2, "one table for all runs, and what it shows"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("report", "name what to report on: excise report DIRECTORY, or excise report RUN..."),
        ("report nowhere", "there is no folder nowhere"),
        ("report UNTRAINED", "has not been evaluated yet; do that first"),
        ("report REPRODUCTION REPRODUCTION", "figure-1 is there twice"),
        ("report REPRODUCTION --out page.html", "--out page.html must be a folder"),
        ("report DAMAGED", "figure-1.json holds no figure: tokens is unknown"),
        ("report REPRODUCTION --formats gif", "--formats gif is not known"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    reproduction, runs, tmp_path, monkeypatch, capsys, command, message
):
    damaged, untrained = tmp_path / "damaged", tmp_path / "untrained"
    (damaged / "figures").mkdir(parents=True)
    plain = dataclasses.asdict(figure_1()) | {"tokens": 1}
    (damaged / "figures" / "figure-1.json").write_text(json.dumps(plain))
    untrained.mkdir()
    shutil.copy(runs / "sgtm" / "config.json", untrained)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    places = {"REPRODUCTION": reproduction, "DAMAGED": damaged, "UNTRAINED": untrained}
    assert main([str(places.get(word, word)) for word in command.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert list((tmp_path / "here").iterdir()) == []
