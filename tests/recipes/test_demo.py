"""The demo in small: all files, the promised results, and a failure that is loud."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import asdict

import pytest
from rich.console import Console

from excise.cli.demo import claims_table, losses_table
from excise.cli.main import main
from excise.config import override
from excise.evals.losses import AblationLosses
from excise.recipes.demo import demo_claims, demo_run, demo_runs


def tiny():
    return override(
        demo_run(),
        {
            "data.n_stories": 16,
            "data.n_test_stories": 9,
            "model.d_model": 16,
            "model.d_mlp": 32,
            "routing.forget_units": 8,
            "train.evaluations": 2,
        },
    )


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo") / "out"
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr("excise.recipes.demo.demo_run", tiny)
        code = main(["demo", "--directory", str(directory)])
        again = main(["demo", "--directory", str(directory)])
    assert code == again
    return directory, code, printed.getvalue()


def test_results_have_the_promised_shape(outcome):
    directory, *_ = outcome
    results = json.loads((directory / "results.json").read_text())
    assert set(results["losses"]) == {"no_filter", "data_filter", "sgtm", "perfect_filter"}
    for sets in results["losses"].values():
        assert set(sets) == {"retain", "forget"}
        for losses in sets.values():
            assert set(losses) == {"before", "ablated", "calibrated"}
    for claim in results["claims"]:
        assert set(claim) == {"name", "value", "bound", "holds"}
    assert {sample["language"] for sample in results["samples"]} == {"english", "spanish"}
    assert all(points[-1]["share"] == 1 and len(points) == 2 for points in results["curves"].values())


def test_picture_and_page_are_written(outcome):
    directory, *_ = outcome
    assert (directory / "tradeoff.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (directory / "report.html").read_text(encoding="utf-8")


def test_the_terminal_says_what_the_demo_does_not_show_and_where_to_look(outcome):
    directory, _, printed = outcome
    text = " ".join(printed.split())
    assert "SGTM with token vectors: the paper’s SGTM does not have these" in text
    assert "fine-tuning can bring it back, which this demo does not try; excise attack does." in text
    assert printed.endswith(f"wrote {directory / 'report.html'}: open it in a browser\n")


def test_an_untrained_demo_fails_loudly(outcome):
    directory, code, _ = outcome
    claims = json.loads((directory / "results.json").read_text())["claims"]
    assert not all(claim["holds"] for claim in claims)
    assert code == 1


def test_methods_differ_in_nothing_but_rule_and_filter():
    """And the weight and the tokens of the domain, which belong to SGTM: the other methods train as anybody would."""
    runs = {method: asdict(run) for method, run in demo_runs(demo_run()).items()}
    assert [run["routing"]["forget_weight"] for run in runs.values()] == [1.0, 1.0, 0.15, 1.0]
    assert [run["routing"]["forget_tokens"] for run in runs.values()] == [0.0, 0.0, 0.9, 0.0]
    for run in runs.values():
        run["routing"]["rule"] = run["routing"]["forget_weight"] = run["data"]["filter"] = None
        run["routing"]["forget_tokens"] = None
    assert all(run == runs["sgtm"] for run in runs.values())


def losses(**forget):
    """Losses that satisfy every claim, but for the calibrated Spanish losses given."""
    values = {"no_filter": 4.0, "data_filter": 5.0, "sgtm": 8.6, "perfect_filter": 9.0} | forget
    before = {"no_filter": 4.0, "data_filter": 5.0, "sgtm": 5.0, "perfect_filter": 9.0}
    return {
        method: {
            "retain": AblationLosses(4.0, 4.0, 4.0),
            "forget": AblationLosses(before[method], loss, loss),
        }
        for method, loss in values.items()
    }


def test_claims_hold_or_fail_each_by_itself():
    assert all(claim.holds for claim in demo_claims(losses()))
    assert [claim.holds for claim in demo_claims(losses(sgtm=8.1))] == [False, True, True, True]
    assert [claim.holds for claim in demo_claims(losses(no_filter=5.6))] == [True, True, False, True]
    worse = losses()
    worse["sgtm"]["retain"] = AblationLosses(4.3, 4.3, 4.3)
    assert [claim.holds for claim in demo_claims(worse)] == [True, False, True, True]
    shallow = losses()
    shallow["sgtm"]["forget"] = AblationLosses(6.6, 8.6, 8.6)
    assert [claim.holds for claim in demo_claims(shallow)] == [True, True, True, False]


@pytest.mark.parametrize("width", [80, 120])
def test_tables_break_no_word(capsys, width):
    plain = {method: {role: asdict(of) for role, of in roles.items()} for method, roles in losses().items()}
    for table in (losses_table(plain), claims_table(demo_claims(losses()))):
        Console(width=width).print(table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert {"calibrated", "vectors", "(oracle)", "forgetting", "measured"} <= set(" ".join(lines).split())


def test_a_claim_that_fails_is_printed_as_such(capsys):
    Console(width=120).print(claims_table(demo_claims(losses(sgtm=8.1))))
    assert capsys.readouterr().out.count("DOES NOT HOLD") == 1
