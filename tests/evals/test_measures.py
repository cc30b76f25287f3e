"""Measures that compare runs: each is its pure function, called with the numbers in the results.json of the runs."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from excise.evals.leakage import LeakagePoint, baseline_curve, leakage
from excise.evals.losses import without_modules
from excise.evals.measures import MEASURES, surface_of, token_losses_after_ablation
from excise.evals.options import MeasureOptions
from excise.evals.run import open_run
from tests.evals.runs import PLAIN, copy_of, evaluated, results_of, train_run

LOSSES = "measures/losses"
ABLATED, SEEN = f"{LOSSES}/sets/biology/ablated", f"{LOSSES}/forget_tokens/biology"


@pytest.fixture(scope="module")
def sgtm(tmp_path_factory):
    return evaluated(train_run(tmp_path_factory.mktemp("runs") / "sgtm"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return evaluated(train_run(tmp_path_factory.mktemp("runs") / "plain", **PLAIN, **{"batch.context": 128}))


def measure(name, run, **options):
    return MEASURES[name](open_run(run), MeasureOptions(**options))


def standard(plain, to, *, tokens, loss, seed=0):
    """A standard run with so many forget tokens in its training, some of them labelled."""
    seen = {"labelled": tokens // 4, "unlabeled": tokens - tokens // 4}
    return copy_of(plain, to, numbers={SEEN: seen, ABLATED: loss, "provenance/seed": seed})


def test_leakage_is_that_of_the_numbers_of_the_runs(sgtm, plain, tmp_path):
    interval = f"{LOSSES}/sets/biology/intervals"
    numbers = {ABLATED: 6.5, interval: {"ablated": [6.304, 6.696]}, SEEN: {"labelled": 9000, "unlabeled": 400}}
    run = copy_of(sgtm, tmp_path / "run", numbers=numbers)
    points = [(0, 8.0, 0), (0, 8.2, 1), (100, 7.0, 0), (100, 7.2, 1), (300, 6.0, 0), (300, 6.0, 1)]
    baselines = [
        standard(plain, tmp_path / f"standard{i}", tokens=tokens, loss=loss, seed=seed)
        for i, (tokens, loss, seed) in enumerate(points)
    ]
    found = measure("leakage", run, baselines=tuple(baselines))
    curve = baseline_curve([LeakagePoint(*point) for point in points])
    assert found.curves == {"biology": curve}
    assert found.domains == {"biology": leakage(curve, 6.5, 400, loss_error=(6.696 - 6.304) / 3.92)}
    assert found.domains["biology"].leakage == pytest.approx((100 + 200 * 0.6 / 1.1) / 400), "7.1 at 100, 6 at 300"
    assert [of.seed for of in found.baselines] == [0, 1] * 3


def refusals(sgtm, plain, folder):
    unread = copy_of(plain, folder / "unread")
    (unread / "results.json").unlink()
    elsewhere = copy_of(plain, folder / "elsewhere", numbers={"provenance/evaluated_on_sha256": "0"})
    other_sets = copy_of(plain, folder / "other_sets", numbers={f"{LOSSES}/sets": {}})
    return {
        "has not been evaluated yet; do that first: excise evaluate": unread,
        r"sgtm is no standard run, which .* compares others with \(rule none": sgtm,
        "elsewhere was evaluated on other data than .*sgtm": elsewhere,
        "other_sets was evaluated on other data than .*sgtm": other_sets,
    }


@pytest.mark.parametrize("name", ["leakage", "compute_penalty"])
def test_runs_that_a_run_cannot_be_compared_with_are_refused(name, sgtm, plain, tmp_path):
    for message, baseline in refusals(sgtm, plain, tmp_path).items():
        with pytest.raises(ValueError, match=message):
            measure(name, sgtm, baselines=(plain, baseline))
    with pytest.raises(ValueError, match=f"{name} compares a run with others; name them with --baselines"):
        measure(name, sgtm)
    stale = copy_of(sgtm, tmp_path / "stale", numbers={"provenance/checkpoint_sha256": "0"})
    with pytest.raises(ValueError, match="stale are of another checkpoint or data; evaluate it again"):
        measure(name, stale, baselines=(plain,))


def scaled(run, to, factor, parameters):
    means = results_of(run)["measures"]["losses"]["category_means"]
    changed = {
        name: {key: value * factor if key in ("before", "calibrated") else value for key, value in of.items()}
        for name, of in means.items()
    }
    return copy_of(run, to, numbers={f"{LOSSES}/category_means": changed, "provenance/parameters": parameters})


def test_the_baseline_itself_has_no_compute_penalty_and_another_has_the_laws(plain, tmp_path):
    parameters = results_of(plain)["provenance"]["parameters"]
    baselines = plain, scaled(plain, tmp_path / "large", 0.8, 10 * parameters)
    found = measure("compute_penalty", plain, baselines=baselines)
    sets = ["retain", "biology", "adjacent", "general"]
    assert [list(of) for of in (found.before, found.calibrated, found.laws)] == [sets] * 3
    for of in (*found.before.values(), *found.calibrated.values()):
        assert of.compute_penalty == pytest.approx(0, abs=1e-12)
    worse = measure("compute_penalty", scaled(plain, tmp_path / "worse", 1.25, parameters), baselines=baselines)
    for of in (*worse.before.values(), *worse.calibrated.values()):
        assert of.compute_penalty == pytest.approx(0.9), "as a tenth of the compute has 1.25 times the loss"
    with pytest.raises(ValueError, match="no baseline has the"):
        measure("compute_penalty", plain, baselines=baselines[1:])


def test_losses_by_token_average_to_the_reported_loss_of_each_run(sgtm, plain):
    found = measure("token_losses", sgtm, against=plain)
    assert found.against.run == "plain"
    for run, side in ((sgtm, "losses"), (plain, "reference")):
        for name, reported in results_of(run)["measures"]["losses"]["sets"].items():
            for stage, sets in (("ablated", found.ablated), ("calibrated", found.calibrated)):
                assert getattr(sets[name], side).mean == pytest.approx(reported[stage], rel=1e-6)
                assert sets[name].n_tokens == reported["n_tokens"]
                assert sets[name].n_documents == reported["n_documents"]
    with pytest.raises(ValueError, match="name one with --against"):
        measure("token_losses", sgtm)


@torch.no_grad()
def naive_token_losses(subject, tokens):
    """A document alone, a row after the other."""
    rows = [tokens[i : i + subject.context + 1] for i in range(0, len(tokens) - 1, subject.context)]
    route = without_modules(subject.model, subject.removed)
    logits = torch.cat([subject.model(row[None, :-1], route=route)[0] for row in rows])
    return cross_entropy(logits, tokens[1:], reduction="none")


def test_losses_by_token_are_in_the_order_of_the_text_at_any_context(sgtm, plain):
    for subject in (open_run(run) for run in (sgtm, plain)):
        corpus = subject.data.test["adjacent"]
        found = token_losses_after_ablation(subject, corpus)
        documents = [corpus.tokens[a : a + n] for a, n in zip(corpus.starts, corpus.lengths, strict=True)]
        expected = [naive_token_losses(subject, torch.from_numpy(of.astype(np.int64))) for of in documents]
        np.testing.assert_allclose(found[0], torch.cat(expected), rtol=1e-4)


def surface_runs(sgtm, plain, folder):
    """At each point of a grid, retain and forget losses of SGTM above those of the filter by its two shares."""
    for undiscovered in (0.0, 0.5):
        for rate in (0.0, 0.4):
            shares = {"data.undiscovered_share": undiscovered, "data.false_positive_rate": rate}
            for run, more, name in ((sgtm, 1, "sgtm"), (plain, 0, "filter")):
                sets = {"retain": 5.0 + more * undiscovered, "biology": 6.0 + more * rate}
                numbers = {f"{LOSSES}/sets/{of}/calibrated": loss for of, loss in sets.items()}
                config = shares if more else {**shares, "data.filter": "weak"}
                yield copy_of(run, folder / f"{name}-{undiscovered}-{rate}", config, numbers)


def test_a_surface_pairs_the_runs_with_the_same_labels(sgtm, plain, tmp_path):
    runs = list(surface_runs(sgtm, plain, tmp_path))
    surface = surface_of(runs[::-1]).surface
    assert (surface.recall, surface.false_positive_rate) == ([0.5, 1.0], [0.0, pytest.approx(0.4 * 0.75)])
    assert np.allclose(surface.retain, [[0.5, 0.5], [0.0, 0.0]])
    assert np.allclose(surface.forget, [[0.0, 0.4], [0.0, 0.4]])
    with pytest.raises(ValueError, match=r"no two runs, SGTM and filter, at TPR 0\.5 and FPR 0\.3"):
        surface_of(runs[:-1])
    with pytest.raises(ValueError, match="second sgtm run"):
        surface_of([*runs, copy_of(runs[0], tmp_path / "again")])
    with pytest.raises(ValueError, match=r"plain is .* nor the weak filter on simulated labels; leave it out"):
        surface_of([plain])
