"""Figures beyond the paper: runs that are shared, documents that mix labels, and claims checked by hand."""

import json
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from excise.config import override, to_dict
from excise.data.dataset import load_data
from excise.data.loader import Loader
from excise.data.noise import OTHER, simulate_labels
from excise.data.shards import load_prepared
from excise.data.tokenised import Column, Tokenised
from excise.evals.figure import Estimate, Scale
from excise.evals.losses import STAGES
from excise.evals.results import Provenance, Results
from excise.labels import RETAIN
from excise.recipes.figures import FIGURES
from excise.recipes.figures.batches import METHODS, SMALL, SMALLER
from excise.recipes.figures.batches import WEIGHTS as BATCH_WEIGHTS
from excise.recipes.figures.beyond import DOMAINS, MIXED, MixedSources, mix, origin_of, token_runs
from excise.recipes.figures.bilingual_runs import DOMAIN, FEW_SEEDS, SEEDS, setup
from excise.recipes.figures.costs import tokens_of
from excise.recipes.figures.dials import SHARE, WEIGHTS
from excise.recipes.figures.estimates import at_most_1
from excise.recipes.figures.frontier import (
    BUDGETS,
    EQUAL_STEPS,
    FAMILIES,
    GOAL,
    SMALL_STEPS,
    TRIED,
    Place,
    any_of,
    cheaper_claim,
    control_claim,
    described,
    frontier_claim,
    place_of,
    steps_claim,
)
from excise.recipes.figures.frontier_attacks import left_under_attack, more_than_words, sums_under_attack
from excise.recipes.figures.plan import name_of, plan
from excise.recipes.figures.planned import FinishedRun, PlannedRun, Sources
from excise.recipes.figures.topics_attacks import Relearned
from excise.recipes.reproduce import draw, line, reproduce
from excise.report.style import LOOKS, looks_of
from excise.train.schedule import steps
from excise.train.step import loss_weights
from tests.recipes.test_reproduce import BASE, tiny
from tests.recipes.test_topics_figures import attack_on

MAIN = ("frontier", "batch-size")
"""Figures of our own with as many seeds as main results."""
NAMES = ("mixed-batches", "forget-weight", "embeddings", "frontier", "batch-size", "token-labels", "two-domains")
SCALES = get_args(Scale)
UNLABELED_TOKEN, RETAIN_TOKEN, SPANISH_TOKEN = range(3)


def finished(planned, losses, rows=()):
    """A run with these losses by set, the same at every stage or one for each."""
    stages = {name: of if isinstance(of, tuple) else (of,) * 3 for name, of in losses.items()}
    sets = {
        name: dict(zip(STAGES, of, strict=True))
        | {"intervals": {stage: (loss - 0.01, loss + 0.01) for stage, loss in zip(STAGES, of, strict=True)}}
        | {"n_documents": 10, "n_tokens": 100}
        for name, of in stages.items()
    }
    ends = {name: dict(zip(STAGES, of, strict=True)) for name, of in stages.items()}
    early = {name: {stage: loss + 1 for stage, loss in of.items()} for name, of in ends.items()}
    measures = {
        "losses": {"sets": sets, "categories": {}, "category_means": {}, "removed": [], "calibration_weights": {}}
        | {"forget_tokens": {}},
        "first_loss": {"loss": 8.0},
        "tradeoff": [{"share": 0.5, "losses": early}, {"share": 1.0, "losses": ends}],
        "cross_domain": {"rows": list(rows)},
    }
    source = Provenance("", planned.method, 1, "", 1, 1.0, 1, planned.config.train.seed, "", "", "", "float32", "", "")
    return FinishedRun(name_of(planned), planned.config, Results(source, measures), [{"loss": 5.0}])


def drawn(name, losses, scale="smoke", rows=None):
    """A figure from losses by key of a run; those of other keys are those of `no_filter`."""
    runs = FIGURES[name].runs(scale, Sources())
    groups = {
        key: [finished(run, losses.get(key, losses["no_filter"]), (rows or {}).get(key, ()))]
        for key, run in runs.items()
    }
    return draw(FIGURES[name], scale, groups)


# --- Plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_plan_and_a_drawing_at_every_scale(name, scale):
    planned = plan([name], scale).groups[name]
    assert {len(names) for names in planned.values()} == {(SEEDS if name in MAIN else FEW_SEEDS)[scale]}
    assert FIGURES[name].section == "beyond"
    sets = {RETAIN: 5.0, **dict.fromkeys((DOMAIN, *DOMAINS), 6.0)}
    rows = [{"removed": of, "losses": sets} for of in ([], ["biology"], ["military"], ["biology", "military"])]
    runs = FIGURES[name].runs(scale, Sources())
    made = draw(FIGURES[name], scale, {key: [finished(run, sets, rows)] for key, run in runs.items()})
    assert made.panels
    assert len(made.claims) >= 3
    assert not any(claim.holds for claim in made.claims if claim.ours and "micro-batch" not in claim.text), "all alike"


def changed(one, other, where=""):
    for name, value in one.items():
        if isinstance(value, dict) and isinstance(other[name], dict):
            yield from changed(value, other[name], f"{where}{name}.")
        elif value != other[name]:
            yield f"{where}{name}"


@pytest.mark.parametrize("scale", SCALES)
def test_figures_about_one_option_change_nothing_else(scale):
    allowed = {
        "mixed-batches": {
            "batch.label_mixing",
            "batch.rows_per_micro_batch",
            "train.evaluations",
            "train.paper_faithful_optimizer",
        },
        "forget-weight": {"routing.forget_weight"},
        "embeddings": {"routing.embeddings", "routing.norms"},
    }
    paper = to_dict(FIGURES["frontier"].runs(scale, Sources())["sgtm"].config)
    for name, options in allowed.items():
        for run in FIGURES[name].runs(scale, Sources()).values():
            if run.config.routing.rule == "sgtm":
                assert set(changed(paper, to_dict(run.config))) <= options


@pytest.mark.parametrize("scale", SCALES)
def test_the_budgets_of_the_frontier_differ_in_nothing_else(scale):
    runs = FIGURES["frontier"].runs(scale, Sources())
    assert len(runs) == 2 * len(described(scale)) - 1
    for name in set(described(scale)) - {SMALL_STEPS}:
        one, equal = (runs[name + budget].config for budget in BUDGETS)
        assert one.train.budget.unit == "epochs"
        assert override(one, {"train.budget": steps(EQUAL_STEPS[scale])}) == equal
        assert one.data.undiscovered_share == (SHARE if name not in ("no_filter", "perfect_filter") else 0)


@pytest.mark.parametrize("scale", SCALES)
def test_a_filter_in_small_steps_differs_in_nothing_else_but_its_rate(scale):
    runs = {name: run.config for name, run in FIGURES["frontier"].runs(scale, Sources()).items()}
    filtered, small = runs["data_filter"], runs[SMALL_STEPS]
    assert small.batch.rows_per_step == filtered.batch.rows_per_step / 2
    allowed = {"batch.rows_per_step", "batch.rows_per_micro_batch", "train.learning_rate"}
    assert set(changed(to_dict(filtered), to_dict(small))) <= allowed


def test_a_filter_in_small_steps_takes_about_as_many_as_training_without_one():
    def n_steps(key):
        config = FIGURES["frontier"].runs("smoke", Sources())[key].config
        return config.train.budget.n_steps(
            Loader(load_data(config.data, config.routing.domains).train, config.batch, 0)
        )

    assert n_steps(SMALL_STEPS) == pytest.approx(n_steps("no_filter"), rel=0.1)
    assert n_steps(SMALL_STEPS) == pytest.approx(2 * n_steps("data_filter"), rel=0.1)


@pytest.mark.parametrize("scale", SCALES)
def test_small_batches_differ_in_nothing_else_but_their_rates(scale):
    runs = {name: run.config for name, run in FIGURES["batch-size"].runs(scale, Sources()).items()}
    frontier = FIGURES["frontier"].runs(scale, Sources())
    assert runs["token_vectors"] == frontier[f"vectors {BATCH_WEIGHTS[scale]:g}"].config
    for name in METHODS:
        usual, small = runs[name], runs[name + SMALL]
        assert small.batch.rows_per_step * SMALLER[scale] == usual.batch.rows_per_step
        allowed = {"batch.rows_per_step", "batch.rows_per_micro_batch", "train.learning_rate"}
        assert set(changed(to_dict(usual), to_dict(small))) <= allowed


def test_runs_are_shared_with_each_other_and_with_the_paper_s():
    planned = plan([*NAMES, "figure-3"], "small")
    figures = {name: planned.runs[first].figures for name, (first, *_) in planned.groups["frontier"].items()}
    assert figures["sgtm"] == {"figure-3", "mixed-batches", "forget-weight", "embeddings", "frontier", "batch-size"}
    assert figures["data_filter"] == figures["perfect_filter"] == figures["no_filter"] == figures["sgtm"]
    assert figures["tenth 0.6"] == {"frontier"}


# --- Documents that mix labels ---------------------------------------------------------------------------------------


def test_every_second_pair_is_joined_crosswise_and_every_token_keeps_its_language():
    """English is even and Spanish odd; a document's tokens end with a hundred."""
    texts = [
        [2, 4, 6, 100],
        [1, 3, 5, 7, 101],
        [12, 14, 16, 100],
        [11, 13, 101],
        [22, 100],
        [21, 23, 101],
        [32, 34, 100],
    ]
    words = ["en", "es", "en", "es", "en", "es", "en"]
    data = Tokenised(np.concatenate(texts), np.array(list(map(len, texts))), Column.of(words), Column.of(words))
    config = override(BASE, {"data.retain_share": 0.5}).data
    mixed = mix(data, "es", config)
    starts = np.cumsum(mixed.lengths) - mixed.lengths
    found = [mixed.tokens[a : a + n].tolist() for a, n in zip(starts, mixed.lengths, strict=True)]
    assert found == [texts[0], texts[1], [12, 14, 13, 101], [11, 16, 100], *texts[4:]]
    categories = [mixed.categories.names[i] for i in mixed.categories.index]
    assert categories == ["en", "es", "es", "es", "en", "es", "en"], "Spanish is what holds any"
    labels = [mixed.labels.names[i] for i in mixed.labels.index]
    assert labels[1:4] == [DOMAIN] * 3
    for a, n, label in zip(starts, mixed.lengths, labels, strict=True):
        for token, number in zip(mixed.tokens[a : a + n], mixed.token_labels.index[a : a + n], strict=True):
            expected = label if label != DOMAIN or token % 2 else "unlabeled"
            assert mixed.token_labels.names[number] == expected


@pytest.fixture(scope="module")
def mixed_runs(tmp_path_factory):
    """The runs of the figure with their data made, not trained."""
    sources = MixedSources(tmp_path_factory.mktemp("data"))
    changes = {"data.n_stories": 60, "data.n_test_stories": 20, "data.seed": 3}
    runs = {key: override(run.config, changes) for key, run in token_runs("smoke", Sources()).items()}
    located = {key: sources.locate(config) for key, config in runs.items()}
    for config in located.values():
        assert sources.make(config.data.source) == config.data.source
    return runs, located


def test_document_labels_and_token_labels_find_the_same_documents(mixed_runs):
    _, located = mixed_runs
    given, simulated = (load_data(located[key].data, [DOMAIN]) for key in ("sgtm", "sgtm_documents"))
    assert np.array_equal(given.train.labels, simulated.train.labels)
    assert (given.train.labels == SPANISH_TOKEN).sum() == round((1 - SHARE) * 90)
    assert given.train.token_labels is not None
    assert simulated.train.token_labels is None
    assert given.held_out_sha256 == simulated.held_out_sha256
    expected = simulate_labels(
        np.where(given.truth == 0, 0, OTHER),
        [DOMAIN],
        undiscovered_share=SHARE,
        retain_share=0.25,
        adjacent_retain_share=0.25,
        seed=3,
    )
    assert np.array_equal(given.train.labels, expected)


def test_the_token_filter_reads_spanish_and_has_no_loss_on_it(mixed_runs):
    config = mixed_runs[1]["token_filter"]
    loader = Loader(load_data(config.data, [DOMAIN]).train, config.batch, seed=0)
    batches = [batch for step in range(loader.steps_per_epoch) for batch in loader.step(step)]
    assert any(batch.mixed_documents for batch in batches)
    for batch in batches:
        assert torch.equal(loss_weights(batch, config.routing.forget_weight) == 0, batch.labels == SPANISH_TOKEN)
    n_spanish = sum(int((batch.labels == SPANISH_TOKEN).sum()) for batch in batches)
    assert 0.4 < n_spanish / sum(batch.n_predicted for batch in batches) < 0.6, "about half of all tokens"


def test_a_run_on_mixed_documents_has_one_name_wherever_they_lie(mixed_runs):
    for key, config in mixed_runs[0].items():
        assert name_of(PlannedRun(config=config)) == name_of(PlannedRun(config=mixed_runs[1][key]))
        assert name_of(PlannedRun(config=config)) != name_of(PlannedRun(config=origin_of(config)))


def test_mixed_documents_are_as_long_as_those_that_they_are_made_from(mixed_runs):
    runs, located = mixed_runs
    for key in ("sgtm", "sgtm_documents", "token_filter", "no_filter"):
        n_tokens = load_data(located[key].data, [DOMAIN]).train.lengths.sum() - 120
        assert tokens_of(origin_of(runs[key])) == pytest.approx(n_tokens, rel=0.03)


def test_mixed_documents_are_made_of_prepared_data_too(mixed_runs, tmp_path):
    origin = mixed_runs[1]["sgtm"].data.source
    (tmp_path / f"bilingual{MIXED}").parent.mkdir(exist_ok=True)
    (tmp_path / "bilingual").symlink_to(origin)
    sources = MixedSources(tmp_path / "data")
    wanted = sources.locate(override(BASE, {"data.source": str(tmp_path / f"bilingual{MIXED}")})).data.source
    assert load_prepared(tmp_path / "bilingual").splits["train"].lengths.sum() == (
        load_prepared(type(tmp_path)(sources.make(wanted))).splits["train"].lengths.sum()
    )
    missing = sources.locate(override(BASE, {"data.source": f"nowhere{MIXED}"})).data.source
    assert sources.make(missing) == "nowhere", "which is then asked for"


def test_missing_data_for_mixed_documents_are_told(tmp_path):
    with pytest.raises(ValueError, match="no prepared data at 'bilingual'"):
        reproduce(["token-labels"], "small", directory=tmp_path)


# --- Claims ----------------------------------------------------------------------------------------------------------


def holds(made):
    return [claim.holds for claim in made.claims]


def test_mixing_is_judged_at_the_end_and_at_equal_retain_loss():
    losses = {"no_filter": {RETAIN: 5.0, DOMAIN: 5.0}, "rows": {RETAIN: 5.0, DOMAIN: 8.0}}
    better = {**losses, "micro_batches": {RETAIN: 5.01, DOMAIN: 8.0}, "steps": {RETAIN: 5.4, DOMAIN: 8.2}}
    better["zeros"] = {RETAIN: 5.5, DOMAIN: 8.2}
    assert holds(drawn("mixed-batches", better)) == [True, True, True, True]
    worse = {**losses, "micro_batches": {RETAIN: 5.4, DOMAIN: 8.0}, "steps": {RETAIN: 4.6, DOMAIN: 8.2}}
    worse["zeros"] = {RETAIN: 4.5, DOMAIN: 8.2}
    assert holds(drawn("mixed-batches", worse)) == [False, False, False, False]


def test_the_weight_is_a_dial():
    losses = {"no_filter": {RETAIN: 5.0, DOMAIN: 5.0}, "data_filter": {RETAIN: 5.0, DOMAIN: 6.0}}
    dial = {f"weight {w:g}": {RETAIN: 5 + w, DOMAIN: (4 + w, 7 + w, 7 + w)} for w in WEIGHTS["smoke"]}
    made = drawn("forget-weight", losses | dial)
    assert holds(made) == [True] * 4
    assert [claim.ours.value for claim in made.claims] == pytest.approx([-0.15, -0.95, 1.05, -0.95])
    assert [point.x.value for point in made.panels[0].series[0].points] == pytest.approx([5.05, 5.2, 6.0])
    against = {f"weight {w:g}": {RETAIN: 5 - w, DOMAIN: (4 - w, 6 - w, 6 - w)} for w in WEIGHTS["smoke"]}
    assert holds(drawn("forget-weight", losses | against)) == [False] * 4


def test_small_batches_are_judged_among_themselves():
    """English, and Spanish before and after ablation; the midpoint of 3 and 9 is what a whole model must be below."""
    usual = {"no_filter": (4.0, 3.0, 3.0), "data_filter": (5.0, 5.0, 5.0), "perfect_filter": (5.0, 9.0, 9.0)}
    usual |= {"sgtm": (5.2, 5.0, 8.0), "token_vectors": (5.0, 5.0, 8.0)}
    small = {"no_filter": (3.0, 3.0, 3.0), "data_filter": (4.0, 4.0, 4.0), "perfect_filter": (5.5, 9.0, 9.0)}
    small |= {"sgtm": (4.4, 5.0, 8.0), "token_vectors": (4.04, 5.0, 8.0)}
    by_key = usual | {name + SMALL: of for name, of in small.items()}
    losses = {name: {RETAIN: e, DOMAIN: (before, after, after)} for name, (e, before, after) in by_key.items()}
    claims = drawn("batch-size", losses).claims
    assert [claim.ours.value for claim in claims] == pytest.approx([5.5 - 5, 8 - 4, 10 - 4, (8 - 4) / (9 - 4)])
    assert [claim.holds for claim in claims] == [False, True, False, True]
    losses["perfect_filter" + SMALL][RETAIN] = 4.0
    gains = drawn("batch-size", losses).claims[0]
    assert (gains.ours.value, gains.holds) == (pytest.approx(4.4 - 5.2), True), "SGTM gains least"


def test_frozen_embeddings_are_compared_with_joint_ones():
    losses = {"no_filter": {RETAIN: 5.0, DOMAIN: 5.0}, "joint": {RETAIN: 5.4, DOMAIN: 8.0}}
    better = {"embeddings": {RETAIN: 5.2, DOMAIN: 9.0}, "both": {RETAIN: 5.2, DOMAIN: 9.5}}
    worse = {"embeddings": {RETAIN: 5.5, DOMAIN: 7.0}, "both": {RETAIN: 5.2, DOMAIN: 6.5}}
    assert holds(drawn("embeddings", losses | better)) == [True] * 3
    assert holds(drawn("embeddings", losses | worse)) == [False] * 3


def test_token_labels_are_compared_with_document_labels_and_with_filters():
    losses = {
        "no_filter": {RETAIN: 5.0, DOMAIN: 5.0},
        "sgtm": {RETAIN: 5.2, DOMAIN: 8.0},
        "sgtm_documents": {RETAIN: 5.6, DOMAIN: 8.1},
        "token_filter": {RETAIN: 5.1, DOMAIN: 7.0},
        "data_filter": {RETAIN: 5.4, DOMAIN: 7.5},
    }
    assert holds(drawn("token-labels", losses)) == [True] * 4
    losses |= {"sgtm": {RETAIN: 5.7, DOMAIN: 6.0}, "token_filter": {RETAIN: 5.5, DOMAIN: 7.0}}
    assert holds(drawn("token-labels", losses)) == [False] * 4


@pytest.mark.parametrize(("spill", "expected"), [(0.1, [True] * 4), (3.5, [True, False, False, True])])
def test_the_cross_domain_matrix_tells_what_each_module_holds(spill, expected):
    """Removing a module costs its domain 3 nats, and the other as many as are spilt."""

    def row(*removed):
        own = {name: 4 + 3 * (name in removed) + spill * bool(set(removed) - {name}) for name in DOMAINS}
        return {"removed": list(removed), "losses": {RETAIN: 5.0, **own}}

    rows = {
        "sgtm": [row(), row("biology"), row("military"), row(*DOMAINS)],
        "no_filter": [row()],
        "perfect_filter": [row()],
    }
    ends = {"no_filter": 4.0, "sgtm": (5.0, 7.0, 7.0), "perfect_filter": 8.0}
    losses = {key: {RETAIN: 5.0, **dict.fromkeys(DOMAINS, loss)} for key, loss in ends.items()}
    made = drawn("two-domains", losses, rows=rows)
    assert holds(made) == expected
    heat, bars = made.panels
    assert heat.values[1] == pytest.approx([5.0, 7.0, 4.0 + spill]), "without biology"
    assert list(bars.labels.values()) == ["Without biology", "Without military"]
    assert [bar.value for bar in list(bars.bars.values())[1]] == pytest.approx([0.0, spill, 3.0])
    losses["sgtm"] = {RETAIN: 5.0, **dict.fromkeys(DOMAINS, (7.0, 5.0, 5.0))}
    ignorant = drawn("two-domains", losses, rows=rows)
    assert [holds(ignorant)[0], holds(ignorant)[-1]] == [False, False]


# --- The frontier ----------------------------------------------------------------------------------------------------


def test_a_place_on_the_frontier_by_hand():
    """The numbers of DESIGN's table: the data filter has 4.64 / 4.28, the perfect filter 8.54, the best run 4.68 / 6.72."""
    run = PlannedRun(config=BASE)
    spanish = {"data_filter": 4.28, "perfect_filter": 8.54, "no_filter": 3.42}
    groups = {name: [finished(run, {RETAIN: 4.64, DOMAIN: of})] for name, of in spanish.items()}
    one = place_of([finished(run, {RETAIN: 4.68, DOMAIN: (4.18, 6.7, 6.72)})], groups, "")
    assert one.recovered.value == pytest.approx(0.573, abs=1e-3)
    assert one.retain.value == pytest.approx(0.86, abs=0.01)
    assert one.before.value == 4.18
    assert one.gap.value == pytest.approx(4.18 - 5.98)
    assert one.reaches(0.57, 0.9)
    alike = {**groups, "perfect_filter": groups["data_filter"]}
    assert place_of(groups["data_filter"], alike, "") is None


def place(recovered, retain=(0.5,) * 3, gap=-1.0):
    """Of three seeds, or of as many as are given."""
    of_seeds = [list(of) if isinstance(of, tuple) else [of] * 3 for of in (recovered, retain)]
    return Place(*of_seeds, Estimate(4.0), Estimate(gap))


@pytest.mark.parametrize(
    ("recovered", "retain", "gap", "expected"),
    [(0.8, 1.4, -1, True), (0.7, 1.4, -1, False), (0.8, 1.6, -1, False), (0.8, 1.4, 0.1, False)],
)
def test_a_claim_needs_recovery_retain_loss_and_knowledge_before_ablation(recovered, retain, gap, expected):
    claim = frontier_claim({"a": place(recovered, retain, gap)}, 0.75, 1.5, "equal steps")
    assert claim.holds is expected
    assert claim.ours.value == pytest.approx(recovered)
    assert ("none is within" in claim.why) == (retain > 1.5 or gap > 0)


def test_a_claim_shows_the_configuration_that_its_intervals_decide():
    unsure, sure = place(0.99, (0.7, 1.3, 1.9)), place(0.87, (0.1, 0.4, 0.7))
    claim = frontier_claim({"a": unsure, "b": sure}, 0.75, 1.5, "equal steps")
    assert (claim.holds, claim.ours) == (True, sure.recovered)
    assert claim.why == (
        "b, the best of those whose intervals say so; its retain loss is 0.4 [-0.3, 1.1] % above the data filter's"
    )
    claim = frontier_claim({"a": unsure, "b": sure}, 0.95, 1.0, "equal steps")
    assert (claim.holds, claim.ours) == (None, unsure.recovered), "though its mean is above that retain loss"
    assert [one.is_near() for one in (unsure, place(0.9, 6.0))] == [True, False]


@pytest.mark.parametrize(
    ("recovered", "retain", "expected"),
    [
        ((0.85, 0.9, 0.95), 0.5, True),
        ((0.6, 0.9, 1.2), 0.5, None),
        ((0.73, 0.69, 0.65), 0.5, None),
        ((0.55, 0.6, 0.64), 0.5, False),
        (1.0, 2.0, None),
    ],
)
def test_the_control_is_beaten_where_seeds_say_so_at_a_retain_loss_that_counts(recovered, retain, expected):
    claim = control_claim(place((0.65, 0.7, 0.75), 0.8), {"a": place(recovered, retain)}, "one epoch")
    assert claim.holds is expected
    assert (claim.ours is None) == (retain > 1.5)


def test_the_configuration_that_beats_the_control_is_told_though_another_may_recover_more():
    places = {"a": place((0.5, 0.95, 1.4)), "b": place((0.88, 0.9, 0.92))}
    claim = control_claim(place((0.65, 0.7, 0.75)), places, "")
    assert (claim.holds, claim.ours.value) == (True, pytest.approx(0.9))


@pytest.mark.parametrize(
    ("recovered", "retain", "expected"),
    [
        (0.9, (-1.5, -1.0, -0.5), True),
        (0.66, (-1.5, -1.0, -0.5), True),
        (0.64, (-1.5, -1.0, -0.5), False),
        (0.9, (2.5, 1.0, -0.5), None),
        (0.9, (3.5, 4.0, 4.5), False),
    ],
)
def test_the_control_is_dear_where_as_much_is_recovered_at_a_lower_retain_loss(recovered, retain, expected):
    dear, one = place(0.9, (6.5, 7.0, 7.5)), place(recovered, retain)
    claim = cheaper_claim(place(0.7, (2.0, 2.5, 3.0)), {"dear": dear, "a": one}, "one epoch")
    assert claim.holds is expected
    assert claim.ours == (dear if recovered == 0.64 else one).retain


def test_a_configuration_that_may_recover_less_is_not_called_cheaper():
    unsure = place((0.5, 0.92, 1.34), (-1.5, -1.0, -0.5))
    assert cheaper_claim(place(0.96, (2.0, 2.5, 3.0)), {"a": unsure}, "one epoch").holds is None


@pytest.mark.parametrize(
    ("retain", "expected"), [((-7.5, -7.0, -6.5), True), ((-4.0, -5.0, -6.0), None), ((-1.5, -1.0, -0.5), False)]
)
def test_a_configuration_is_compared_with_a_filter_that_takes_as_many_steps(retain, expected):
    filtered, little, enough = place(0.0, (-5.5, -5.0, -4.5)), place(0.7, -9.0), place(0.9, retain)
    claim = steps_claim(filtered, {"little": little, "enough": enough}, "one epoch")
    assert (claim.holds, claim.ours) == (expected, enough.retain)


def test_what_is_at_most_1_is_cut_after_its_interval_is_taken():
    assert at_most_1(Estimate(0.95, 0.88, 1.02)) == Estimate(0.95, 0.88, 1.0)
    assert at_most_1(Estimate(1.03, 0.95, 1.1)) == Estimate(1.0, 0.95, 1.0)
    assert at_most_1(Estimate(0.8)) == Estimate(0.8)
    beyond = place((0.9, 1.1, 1.3)).recovered
    assert beyond.value == 1.0
    assert beyond.low < 0.9, "seeds that are cut first would have 0.97 and its interval"


def test_a_run_that_was_made_of_another_has_no_training_of_its_own():
    planned = PlannedRun(config=setup("smoke", Sources()))
    run = finished(planned, {RETAIN: 5.0, DOMAIN: 5.0})
    assert (line(run).first_loss, line(run).last_loss) == (8.0, 5.0)
    made = replace(run, unlearned=True)
    assert (line(made).first_loss, line(made).last_loss) == (None, None)


def test_one_configuration_is_enough_and_intervals_may_leave_it_open():
    assert [any_of(of) for of in ([False, True, None], [False, None], [False], [])] == [True, None, False, None]
    unsure = place((0.76, 0.8, 0.84), 1.0)
    assert unsure.reaches(0.75, 1.5) is None
    assert unsure.reaches(0.65, 1.5)


@pytest.mark.parametrize("scale", SCALES)
def test_the_frontier_shows_every_configuration(scale):
    losses = {
        "no_filter": {RETAIN: 5.0, DOMAIN: 4.0},
        "data_filter": {RETAIN: 5.0, DOMAIN: 5.0},
        "perfect_filter": {RETAIN: 5.0, DOMAIN: 9.0},
    }
    losses |= {f"{name}, equal steps": of for name, of in losses.items()}
    family, (weight, *_) = next(iter(TRIED[scale].items()))
    made = drawn("frontier", losses | {f"{family} {weight:g}": {RETAIN: 5.05, DOMAIN: (5.0, 8.9, 8.9)}}, scale)
    epoch, *_, in_one_epoch, at_equal_steps = made.panels
    assert len(in_one_epoch.rows) == len(at_equal_steps.rows) + 1 == len(described(scale)), "smaller steps in one only"
    assert (epoch.levels["goal"], epoch.x_levels["goal"]) == GOAL
    labels = [series.label for series in epoch.series]
    for name in TRIED[scale]:
        assert any(label.startswith(FAMILIES[name].label) for label in labels)
    assert len({series.method for series in epoch.series}) == len(epoch.series) == 6 + len(TRIED[scale])
    looks = looks_of({*LOOKS, *(series.method for series in epoch.series)})
    assert len({looks[series.method] for series in epoch.series}) == len(epoch.series), "whatever else is on a page"
    points = {series.method: series.points[0] for series in epoch.series}
    assert (points["data_filter"].x.value, points["data_filter"].y.value) == (0, 0)
    assert points["perfect_filter"].y.value == 1
    least, goal, known, control, *equal = made.claims
    assert control.holds
    assert (least.holds, goal.holds, known.holds) == (True, False, False), "0.975 at 1 %, which is not below it"
    assert least.ours.value == pytest.approx(0.975)
    assert not any(claim.holds for claim in equal), "under equal steps no run is better than no filter"


def short(config):
    changes = {"routing.forget_units": 8, "train.budget": steps(3)}
    if config.data.source == "topics":
        changes |= {"data.n_stories": 64, "data.n_test_stories": 64}
    return override(tiny(config), changes)


def test_token_labels_and_two_domains_from_end_to_end(tmp_path):
    paths = reproduce(["token-labels", "two-domains"], "smoke", directory=tmp_path, shorten=short)
    tokens, domains = (json.loads(path.read_text()) for path in paths)
    assert len(tokens["runs"]) == 5
    assert [row[:1] for row in domains["panels"][0]["values"]] == [pytest.approx([8.3], abs=0.2)] * 6
    assert domains["panels"][0]["columns"] == [RETAIN, *DOMAINS, "adjacent", "general"]
    assert len(list(tmp_path.glob(f"data/*/stories{MIXED}/manifest.json"))) == 1, "made once for all runs"


# --- Relearning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_attacks_are_on_the_frontiers_runs_of_equal_steps(scale):
    frontier = {key: run.config for key, run in FIGURES["frontier"].runs(scale, Sources()).items()}
    attacked = FIGURES["frontier-relearning"].runs(scale, Sources())
    for key, run in attacked.items():
        assert run.config == frontier[f"{key}, equal steps"]
        assert (run.unlearning is not None) == (key == "token_reset")
        assert all(attack.baseline == frontier["no_filter, equal steps"] for attack in run.attacks)
        assert all(attack.config.context == run.config.batch.context for attack in run.attacks)
    assert {key for key, run in attacked.items() if not run.attacks} == {"no_filter"}


def relearning_of(lowest):
    """The figure from the lowest forget loss of each attacked run."""
    runs = FIGURES["frontier-relearning"].runs("smoke", Sources())
    groups = {
        key: [
            replace(finished(run, {}), relearning=[attack_on([9.0, lowest[key], 8.0], domain=DOMAIN)])
            if key in lowest
            else finished(run, {})
        ]
        for key, run in runs.items()
    }
    return FIGURES["frontier-relearning"].draw(groups, "smoke")


def test_what_is_left_under_attack_counts_the_steps_that_all_attacks_have_come_to():
    def attack(*losses):
        return Relearned([(10 * i, {DOMAIN: loss}) for i, loss in enumerate(losses)], 0, False, 0.0, 0.0, False)

    ours, data, perfect = attack(9, 6, 4.5, 4), attack(4, 4, 4, 4), attack(9, 8, 5)
    assert sums_under_attack([ours, data, perfect]) == [10.5, 8, 13]
    claim = left_under_attack("ours", [ours], [data], [perfect])
    assert (claim.ours.value, claim.holds) == (0.5, False)


def test_an_attack_that_diverges_at_once_says_nothing_of_words_set_back():
    diverged = Relearned([(0, {DOMAIN: 9.0, RETAIN: 5.0})], 0, False, 0.0, 0.0, False)
    claim = more_than_words("ours", [diverged], [diverged])
    assert (claim.ours, claim.holds) == (None, None)


def test_english_after_an_attack_that_diverges_on_its_way_is_not_known():
    start, end = (0, {DOMAIN: 9.0, RETAIN: 5.0}), (20, {DOMAIN: 7.0, RETAIN: 6.0})
    whole, diverged = (Relearned(of, 0, False, 0.0, 0.0, False) for of in ([start, end], [start, (10, {DOMAIN: 8.0})]))
    claim = more_than_words("ours", [whole], [diverged])
    assert claim.ours.value == -1.0
    assert "English losses at its end 6.00 and unknown" in claim.why


def test_what_is_left_under_attack_is_on_the_way_from_the_data_filter_to_the_perfect_one():
    lowest = {"data_filter": 4.0, "perfect_filter": 5.0, "sgtm": 3.9, "tenth 0.6": 4.8, "token_reset": 4.2}
    made = relearning_of(lowest)
    (plot,) = made.panels
    assert [min(point.y.value for point in series.points) for series in plot.series] == [3.9, 4.8, 4.0, 5.0, 4.2]
    assert [claim.ours.value for claim in made.claims] == pytest.approx([-0.1, 0.8, -0.1, 0.8, -0.15, 0.3])
    assert [bool(claim.holds) for claim in made.claims] == [False, True, False, True, False, True]
    undecided = relearning_of({**lowest, "perfect_filter": 4.0}).claims[2:4]
    assert [(claim.ours, claim.holds) for claim in undecided] == [(None, None)] * 2
