"""`excise evaluate`, `attack` and `unlearn`: what they write, and that bad input costs one sentence and no result."""

import json
from dataclasses import asdict
from io import StringIO
from shutil import copytree, rmtree

import pytest
from rich.console import Console

from excise.cli.main import main
from excise.cli.progress import EvaluationBar, ProgressBar
from excise.cli.tables import FittedTable
from excise.data.tokens import train_tokenizer
from excise.data.topics import CATEGORIES, questions
from excise.evals.losses import STAGES
from excise.evals.progress import HowFar, shown_by
from excise.train.checkpoint import Done
from excise.train.loop import Progress
from tests.evals.runs import PLAIN, copy_of, diverge, evaluated, prepared, results_of, train_run

QUICK = ["--steps", "2", "--evaluate-every", "1", "--learning-rates", "1e-3", "--rows-per-step", "2"]
PRECISIONS = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """SGTM and no filter in both precisions, evaluated."""
    folder = tmp_path_factory.mktemp("runs")
    for precision in PRECISIONS:
        train_run(folder / f"sgtm-{precision}", **{"train.precision": precision})
        train_run(folder / f"plain-{precision}", **PLAIN, **{"train.precision": precision})
    assert main(["evaluate", *(str(run) for run in sorted(folder.iterdir()))]) == 0
    return folder


def measures(run):
    return results_of(run)["measures"]


def test_evaluation_of_several_runs_leaves_results_in_each(runs):
    for run in runs.iterdir():
        provenance = results_of(run)["provenance"]
        assert f"{provenance['run']} {provenance['precision']}" == f"{run.name} {run.name.split('-')[1]}"
        found = measures(run)["losses"]
        assert set(found["categories"]) == set(CATEGORIES)
        assert found["removed"] == (["biology"] if "sgtm" in run.name else [])
        biology = found["sets"]["biology"]
        assert (biology["before"] == biology["ablated"]) == ("plain" in run.name)


def test_measures_are_added_to_those_taken_before(runs, tmp_path, capsys):
    run = copytree(runs / "sgtm-float32", tmp_path / "run")
    (file := tmp_path / "questions.jsonl").write_text(
        "".join(json.dumps(asdict(question)) + "\n" for question in questions(8, seed=0))
    )
    others = ["gradient_norms", "cross_domain", "samples", "multiple_choice", "token_losses"]
    options = ["--prompts", "The whale", "--questions", str(file), "--against", str(runs / "plain-float32")]
    assert main(["evaluate", str(run), "--measures", *others, "--documents", "3", *options]) == 0
    assert f"wrote {run / 'results.json'}" in capsys.readouterr().out
    found = measures(run)
    assert set(found) == {"losses", *others}
    assert found["losses"] == measures(runs / "sgtm-float32")["losses"]
    sets = found["losses"]["sets"]
    for removed, stage in zip(found["cross_domain"]["rows"], ("before", "ablated"), strict=True):
        assert removed["losses"] == pytest.approx({name: of[stage] for name, of in sets.items()}, rel=1e-6)
    norms = found["gradient_norms"]["relative_gradient_norm"]
    assert [len(of["values"]) for parts in norms.values() for of in parts.values()] == [3] * 6, "2 sets, 3 parts"
    (sample,) = found["samples"]
    assert set(sample["written"]) == {"full", "ablated", "plain-float32"}
    assert [answers[0]["n_questions"] for answers in found["multiple_choice"]["models"].values()] == [8, 8]
    assert found["token_losses"]["against"] == results_of(runs / "plain-float32")["provenance"]


def rendered(width, columns, *rows):
    """The lines that a terminal of this width shows of a table."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(FittedTable("A title", columns, rows))
    return [line.rstrip() for line in capture.get().rstrip().splitlines()]


def test_an_interval_stands_beside_its_number_where_there_is_room_and_below_it_where_there_is_none():
    columns, row = ("set", "before", "after"), ("retain", "4.131 [4.082, 4.180]", "9.413 [9.354, 9.472]")
    assert rendered(60, columns, row)[-1].split("  ")[-2:] == [" 4.131 [4.082, 4.180]", " 9.413 [9.354, 9.472]"]
    *_, numbers, intervals = rendered(40, columns, row)
    assert numbers.split() == ["retain", "4.131", "9.413"]
    assert intervals.split("  ")[-2:] == [" [4.082, 4.180]", " [9.354, 9.472]"]


@pytest.mark.parametrize("width", [36, 40, 50, 80, 120])
def test_a_table_breaks_no_word(width):
    columns, row = ("documents", "steps to the goal", "module"), ("calibrated", "0.003 (edge)", "re-initialised")
    lines = rendered(width, columns, row)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert {word for cell in (*columns, *row) for word in cell.split()} <= set(words)


@pytest.mark.parametrize("width", ["80", "120"])
def test_what_is_printed_of_a_run_fits_the_terminal(runs, tmp_path, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    run, baseline = copytree(runs / "sgtm-float32", tmp_path / "run"), str(runs / "plain-float32")
    others = ["losses", "gradient_norms", "cross_domain", "token_losses"]
    assert main(["evaluate", str(run), "--measures", *others, "--documents", "3", "--against", baseline]) == 0
    assert main(["attack", str(run), "--baseline", baseline, *QUICK, "--ablations", "reinitialise", "remove"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, printed)) <= int(width)
    assert {"calibrated", "documents", "removed", "forget/biology"} <= set(" ".join(printed).split())
    losses = measures(run)["losses"]["sets"]["biology"]
    low, high = losses["intervals"]["calibrated"]
    assert sum(f"[{low:.3f}, {high:.3f}]" in line for line in printed) >= 1


def test_a_terminal_shows_what_is_measured_for_how_long_and_how_far():
    console = Console(force_terminal=True, color_system=None, width=100)
    bar = EvaluationBar(console)
    with bar.of("run: losses"), console.capture() as capture:
        console.print(bar.bar.get_renderable())
        bar.show(HowFar(2_000, 8_000, 3.0))
        console.print(bar.bar.get_renderable())
    assert "run: losses 0:00:00" in capture.get()
    assert "run: losses: 2,000 of 8,000 tokens, 9 s left 0:00:00" in capture.get()


@pytest.mark.parametrize("shown_on", [EvaluationBar, lambda console: ProgressBar(console, "demo")])
def test_without_a_terminal_a_long_evaluation_has_a_line_every_ten_seconds(shown_on, capsys):
    with shown_on(Console(soft_wrap=True)) as bar:
        show = getattr(bar, "show_evaluation", None) or bar.show
        for seconds in (1, 9, 11, 13, 20.9, 21.1, 1, 9, 12):
            show(HowFar(int(100 * seconds), 2_200, seconds))
    said = [line.split(": ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert said == [f"{n} of 2,200 tokens, {left} s left" for n, left in (("1,100", 11), ("2,110", 1), ("1,200", 10))]


def test_the_bar_of_a_training_shows_its_evaluations():
    console = Console(force_terminal=True, color_system=None, width=120, file=StringIO())
    with ProgressBar(console, "demo") as bar, shown_by(bar.show_evaluation):
        bar(Progress(None, Done(10, 100, 1.0), 20, 5.0, {}))
        bar.show_evaluation(HowFar(30, 40, 3.0))
        with console.capture() as capture:
            console.print(bar.bar.get_renderable())
    assert "10/20 steps evaluating 75%, 1 s left" in " ".join(capture.get().split())


def test_several_runs_are_compared_in_one_table(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    for folder, run in (("c", "plain-float32"), ("b/inside", "sgtm-float32"), ("a", "sgtm-float32")):
        copytree(runs / run, tmp_path / folder / "run")
    assert main(["ablate", "a/run", "--to", "safe"]) == 0
    assert main(["evaluate", "c/run", "b/inside/run", "safe"]) == 0
    title, heads, _, *rows = capsys.readouterr().out.strip().split("Loss per token")[-1].splitlines()
    assert title == ""
    assert heads.split("  ")[0] == "run (method)"
    losses = {folder: measures(tmp_path / folder)["losses"]["sets"] for folder in ("c/run", "b/inside/run", "safe")}
    numbers = [
        [f"{of['retain']['calibrated']:.3f}", "biology", *(f"{of['biology'][stage]:.3f}" for stage in STAGES)]
        for of in losses.values()
    ]
    assert [row.split()[-5:] for row in rows] == numbers
    names = ["c/run (no_filter)", "inside/run (sgtm)", "safe (sgtm, ablated)"]
    assert [row[: len(name)] for row, name in zip(rows, names, strict=True)] == names


def test_a_name_gives_way_to_numbers_where_there_is_no_room():
    rows = ("a-name-longer-than-the-room-that-there-is", "4.131", "9.413"), ("short", "1.000", "2.000")
    lines = rendered(36, ("run", "before ablation", "calibrated"), *rows)
    assert max(map(len, lines)) <= 36
    assert {"4.131", "9.413", "calibrated", "short"} <= set(" ".join(lines).split())


def test_runs_evaluated_on_other_documents_are_not_compared_silently(runs, bad, tmp_path, capsys):
    assert main(["evaluate", str(runs / "plain-float32"), str(bad["RUN"]), str(bad["ON_OTHER_DATA"])]) == 0
    told = "Not to be compared, because of different test documents: plain-float32, RUN; on_other_data\n"
    assert told in capsys.readouterr().out


def test_an_earlier_checkpoint_has_results_of_its_own_and_can_be_matched(runs, tmp_path):
    run, baseline = copytree(runs / "sgtm-float32", tmp_path / "run"), runs / "plain-float32"
    assert main(["evaluate", str(run), "--step", "2"]) == 0
    early = results_of(run, "results-step-2.json")
    goal = early["measures"]["losses"]["sets"]["general"]["ablated"] - 1e-4
    target = copy_of(baseline, tmp_path / "target", numbers={"measures/losses/sets/general/ablated": goal})
    options = ["--match", str(target), *QUICK, "--no-in-context"]
    assert main(["attack", str(run), "--baseline", str(baseline), *options]) == 0
    attacked = results_of(run, "results-step-2.json")
    assert (attacked["provenance"], attacked["provenance"]["step"]) == (early["provenance"], 2)
    assert set(attacked["measures"]) == {"losses", "relearning"}
    assert (run / "results.json").read_bytes() == (runs / "sgtm-float32" / "results.json").read_bytes()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_attack_begins_at_the_evaluated_losses_and_no_filter_needs_no_step(runs, tmp_path, precision):
    baseline = copytree(runs / f"plain-{precision}", tmp_path / "plain")
    run = copytree(runs / f"sgtm-{precision}", tmp_path / "sgtm")
    ways = ["zero", "reinitialise", "remove"]
    assert main(["attack", str(run), "--baseline", str(baseline), *QUICK, "--ablations", *ways]) == 0
    assert main(["attack", str(baseline), "--baseline", str(baseline), *QUICK, "--no-in-context"]) == 0
    for directory, ablations in ((run, ways), (baseline, ["none"])):
        losses, found = measures(directory)["losses"]["sets"], measures(directory)["relearning"]
        assert [one["ablation"] for one in found] == ablations
        for one in found:
            assert one["baseline_loss"] == measures(baseline)["losses"]["sets"]["biology"]["ablated"]
            points = one["attacks"][0]["points"]
            assert [point["step"] for point in points] == [0, 1, 2]
            for name in ("retain", "biology"):
                assert points[0]["losses"][name] == losses[name]["ablated"], "exactly"
                assert points[2]["losses"][name] != losses[name]["ablated"]
    assert measures(baseline)["relearning"][0]["relearning_steps"] == 0
    assert [of["prefix_tokens"] for of in measures(run)["in_context"]["forget"]] == [0, 16, 32]
    assert "in_context" not in measures(baseline)


def test_a_run_that_has_unlearned_is_one_of_its_own_and_another_seed_is_not(runs, tmp_path, capsys):
    run, unlearned = runs / "plain-float32", tmp_path / "unlearned"
    seed = copy_of(run, tmp_path / "seed", {"train.seed": 1})
    options = ["--steps", "2", "--batch-size", "2", "--learning-rate", "0.01"]
    assert main(["unlearn", str(run), "--to", str(unlearned), *options]) == 0
    assert main(["evaluate", str(run), str(unlearned), str(seed)]) == 0
    assert measures(run)["losses"]["sets"] != measures(unlearned)["losses"]["sets"]
    assert "over 2 seeds: plain-float32, seed" in capsys.readouterr().out


@pytest.fixture(scope="module")
def bad(runs, tmp_path_factory):
    """Runs and data that cannot be evaluated, by what is wrong with them."""
    folder = tmp_path_factory.mktemp("bad")
    copies = {name: copytree(runs / "sgtm-float32", folder / name) for name in ("RUN", "UNTRAINED", "DIVERGED")}
    rmtree(copies["UNTRAINED"] / "checkpoints")
    diverge(copies["DIVERGED"])
    train_tokenizer(["a few words"], 300).save(folder / "tokenizer.json")
    data = {
        "OTHER_TOKENIZER": prepared(folder / "other", str(folder / "tokenizer.json")),
        "WITHOUT_CHEMISTRY": prepared(folder / "without", without="chemistry"),
    }
    other = {"data.n_stories": 48, "data.n_test_stories": 24}
    on_other_data = evaluated(train_run(folder / "on_other_data", **PLAIN, **other))
    return {**copies, **data, "PLAIN": runs / "plain-float32", "ON_OTHER_DATA": on_other_data}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("evaluate", "name at least one run to evaluate"),
        ("evaluate UNTRAINED", "has no checkpoint yet; train it first"),
        ("evaluate RUN --step 3", "has no checkpoint of step 3, only of 2, 4"),
        ("evaluate RUN --data OTHER_TOKENIZER", "was trained with another tokenizer than the one of"),
        ("evaluate RUN --data WITHOUT_CHEMISTRY", "no test document of 'chemistry' is left"),
        ("evaluate DIVERGED", "the model's losses on 'retain' are not finite"),
        ("evaluate RUN --measures leakage --baselines nowhere", "there is no folder nowhere"),
        ("evaluate RUN --measures samples", "give some with --prompts"),
        ("evaluate RUN --measures gradient_norms --documents 0", "documents=0 leaves none to look at"),
        ("evaluate RUN --measures loses", "--measures loses is not known; did you mean 'losses'?"),
        ("attack --baseline PLAIN", "name at least one run to attack"),
        ("attack RUN --baseline nowhere", "there is no folder nowhere"),
        ("attack RUN --baseline ON_OTHER_DATA", "was evaluated on other data than"),
        ("attack RUN --baseline PLAIN --domain biolgy", "did you mean 'biology'?"),
        ("attack DIVERGED --baseline PLAIN", "an attack needs a sound model"),
        ("unlearn RUN --to PLAIN", "is not empty; choose another directory"),
    ],
)
def test_bad_input_is_one_sentence_and_no_result_is_touched(bad, capsys, tmp_path, monkeypatch, command, message):
    def results():
        return {file: file.read_bytes() for folder in bad.values() for file in folder.glob("results*")}

    monkeypatch.chdir(tmp_path)
    before = results()
    assert main([str(bad.get(word, word)) for word in command.split()]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:], "after warnings, if there are any"
    assert message in lines[-1]
    assert results() == before
    assert len(before) == 5
