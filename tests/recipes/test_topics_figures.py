"""Figures about Wikipedia: plans as the paper has them, and numbers that can be checked by hand."""

import json
import math
from dataclasses import asdict, astuple, replace
from typing import get_args

import numpy as np
import pytest

from excise.baselines.unlearning import TOKEN_RESET
from excise.config import override, to_dict
from excise.evals.figure import Estimate, Scale
from excise.evals.losses import STAGES
from excise.evals.relearning import AttackConfig
from excise.evals.results import Provenance, Results
from excise.evals.token_losses import smoothed, token_loss_shift
from excise.recipes.figures import FIGURES
from excise.recipes.figures.bilingual_runs import parameters_of
from excise.recipes.figures.estimates import over_seeds
from excise.recipes.figures.plan import name_of, plan
from excise.recipes.figures.planned import FinishedRun, Sources
from excise.recipes.figures.topics import VARIANTS, axes_of, penalty_on_curve
from excise.recipes.figures.topics_attacks import Relearned, brittle_claim, lead_steps, matched_claim
from excise.recipes.figures.topics_runs import ATTACKS, LARGEST_STEPS, SIZES, STEPS, setup, variant
from excise.recipes.reproduce import draw, reproduce

BIOLOGY = ["figure-1", "figure-6a", "figure-6b", "figure-7", "figure-8", "figure-9", "figure-10", "figure-12"]
TOPICS = [*BIOLOGY, "figure-13"]
ALONE = {name: FIGURES[name] for name in TOPICS}
SETS = ("retain", "biology", "adjacent", "general")


def planned_of(name, scale="smoke"):
    return FIGURES[name].runs(scale, Sources())


# --- Plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", get_args(Scale))
def test_all_methods_of_a_figure_train_equal_steps(scale):
    for name in TOPICS:
        of_models = {}
        for run in planned_of(name, scale).values():
            config = run.config
            assert config.train.budget.unit == "steps"
            of_models.setdefault(config.model, set()).add((config.train.budget, config.batch))
        assert all(len(of) == 1 for of in of_models.values()), name


@pytest.mark.parametrize("scale", get_args(Scale))
def test_a_tenth_of_the_other_data_is_retain_but_for_joint_embeddings(scale):
    for run in (run for name in TOPICS for run in planned_of(name, scale).values()):
        data, routing = run.config.data, run.config.routing
        joint = routing.rule == "sgtm_joint_embeddings"
        assert (data.retain_share, data.adjacent_retain_share) == (0.25 if joint else 0.1, 0.1)
        retain = routing.rule in ("none", "gradient_routing", "sgtm_joint_embeddings")
        assert routing.embeddings == ("joint" if retain else "retain")


def test_modules_of_appendix_c_double():
    base = setup("paper", Sources())
    rules = ("sgtm", "sgtm_joint_down_projection", "sgtm_joint_embeddings", "sgtm_joint_attention")
    assert [variant(base, rule, "paper").routing.forget_units for rule in rules] == [64, 128, 256, 64]


def test_runs_are_shared_between_figures():
    smoke = plan(BIOLOGY, "smoke", figures=ALONE).runs
    main = [name for name, run in smoke.items() if len(run.figures) >= 7]
    assert [name.split("-")[0] for name in main] == ["no_filter", "sgtm", "weak_filter", "strict_filter"]
    assert len(smoke) == 4 + len(VARIANTS) + 2 + 1, "and variants, two smaller sizes, and RMU"
    paper = plan(["figure-1", "figure-9"], "paper", seeds=1, figures=ALONE).runs
    assert len(paper) == 4 + 3, "figure 1's are the largest of the scaling law"


@pytest.mark.parametrize(("domain", "left"), [("biology", 13.95e6), ("military", 10.74e6)])
def test_no_method_of_the_small_scale_sees_more_than_four_epochs(domain, left):
    run = setup("small", Sources(), domain)
    assert STEPS[domain] * run.batch.rows_per_step * run.batch.context <= 4 * left


def test_models_of_a_scaling_law_have_as_many_tokens_for_each_parameter():
    runs = [of.config for of in planned_of("figure-8", "small").values()]
    ratios = [16_384 * run.train.budget.amount / parameters_of(run.model) for run in runs]
    assert ratios == pytest.approx([20] * len(runs), rel=0.01)
    assert 16_384 * LARGEST_STEPS["small"] < 4 * 19e6, "four epochs of what the strict filter leaves"
    names = [f"{parameters_of(model) / 1e6:.1f}M" for model in SIZES["small"].values()]
    assert names == list(SIZES["small"])


def test_data_of_the_small_scale_is_never_the_embedded_one():
    assert setup("small", Sources()).data.source == "prepared/topics"
    given = Sources(topics="a/topics", topics_sizes="a/sizes")
    sources = {run.config.data.source for run in FIGURES["figure-9"].runs("small", given).values()}
    assert sources == {"a/sizes"}
    assert setup("small", given).data.source == "a/topics"


# --- Drawings --------------------------------------------------------------------------------------------------------


def of_set(before, calibrated, half=0.001):
    losses = {"before": before, "ablated": calibrated, "calibrated": calibrated}
    intervals = {stage: (losses[stage] - half, losses[stage] + half) for stage in STAGES}
    return {**losses, "intervals": intervals, "n_documents": 10, "n_tokens": 100}


def finished(planned, losses, curve=(), before=None, **measures):
    """A run with these calibrated losses, and with a curve of shares, general and forget losses."""
    config = planned.config
    sets = {name: of_set((before or losses)[name], losses[name]) for name in losses}
    recorded = [(share, {name: dict.fromkeys(STAGES, loss) for name, loss in at.items()}) for share, at in curve]
    curve = [{"share": share, "losses": at, "category_means": at} for share, at in recorded]
    tokens = round(config.train.budget.amount * config.batch.rows_per_step * config.batch.context)
    parameters, seed = parameters_of(config.model), config.train.seed
    source = Provenance("", planned.method, 1, "", tokens, 1.0, parameters, seed, "", "", "", "float32", "", "")
    of_run = {"sets": sets, "category_means": sets, "categories": {}, "removed": [], "calibration_weights": {}}
    of_run |= {"forget_tokens": {}}
    found = {"losses": of_run, "first_loss": {"loss": 8.0}, "tradeoff": curve, **measures}
    return FinishedRun(name_of(planned), config, Results(source, found), [{"loss": 5.0}])


def claim_of(made, words):
    (found,) = [claim for claim in made.claims if words in claim.text]
    return found


FORGETS = {"no_filter": 0.0, "weak_filter": 0.5, "strict_filter": 0.6, "sgtm": 1.0}
COSTS = {"no_filter": 0.0, "weak_filter": -0.05, "strict_filter": -0.1, "sgtm": 0.1}


def tradeoff_run(key, planned, domain="biology"):
    """Losses fall evenly from 7 to 5, apart from what a method forgets and costs."""

    def at(share):
        retain = 7 - 2 * share + COSTS.get(key, 0.3)
        adjacent = 7 - 2 * share + {"strict_filter": 0.4, "sgtm": 0.2, "weak_filter": 0.1}.get(key, 0.0)
        forget = 7 - 2 * share + FORGETS.get(key, 0.1)
        return {"general": retain, "adjacent": adjacent, domain: forget, "retain": retain}

    return finished(planned, at(1), [(share, at(share)) for share in (0.25, 0.5, 0.75, 1.0)])


def drawn(name, make, scale="smoke"):
    groups = {key: [make(key, planned)] for key, planned in planned_of(name, scale).items()}
    return draw(FIGURES[name], scale, groups)


def test_figure_1_has_leads_and_compute_that_can_be_checked_by_hand():
    made = drawn("figure-1", tradeoff_run)
    general, adjacent = made.panels
    assert [series.method for series in general.series] == ["sgtm", "weak_filter", "strict_filter", "no_filter"] + [
        "equal"
    ] * 3
    assert [series.method for series in adjacent.series] == ["sgtm", "weak_filter", "strict_filter", "no_filter"]
    assert all(series.star for series in adjacent.series)
    joining = [point for series in general.series if series.method == "equal" for point in series.points]
    assert all(end is None for point in joining for of in (point.x, point.y) for end in (of.low, of.high))
    lead = claim_of(made, "SGTM has a better trade-off than the weak filter on general")
    assert lead.ours.value == pytest.approx((1.0 - 0.1) - (0.5 + 0.05)), "forget less general loss, of slope 1 both"
    assert lead.holds
    penalty = claim_of(made, "costs little compute")
    assert penalty.ours.value == pytest.approx(100 * 0.1 / 2), "a loss 0.1 higher, of 2 in the whole training"
    assert penalty.holds is None, "a lower bound below the limit"
    assert penalty.unit.endswith("at least")
    assert claim_of(made, "between those").ours.value == pytest.approx(0.1)
    assert [claim.holds for claim in made.claims].count(False) == 0


@pytest.mark.parametrize("name", ["figure-1", "figure-7", "figure-13", "frontier-topics"])
def test_losses_on_wikipedia_are_means_over_subcategories(name):
    """Without means over tokens a figure is the same."""
    domain = "military" if name == "figure-13" else "biology"

    def without_token_means(key, planned):
        run = tradeoff_run(key, planned, domain)
        curve = [point | {"losses": {}} for point in run.results.measures["tradeoff"]]
        losses = run.results.measures["losses"] | {"sets": {}}
        return replace(
            run, results=Results(run.results.provenance, {**run.results.measures, "tradeoff": curve, "losses": losses})
        )

    assert drawn(name, without_token_means) == drawn(name, lambda key, planned: tradeoff_run(key, planned, domain))


def test_a_curve_without_means_over_categories_says_what_to_do():
    def old_run(key, planned):
        run = tradeoff_run(key, planned)
        curve = [{"share": point["share"], "losses": point["losses"]} for point in run.results.measures["tradeoff"]]
        return replace(run, results=Results(run.results.provenance, {**run.results.measures, "tradeoff": curve}))

    with pytest.raises(ValueError, match="has no means over categories along its curve; delete its folder"):
        drawn("figure-1", old_run)


def test_a_method_that_leads_late_leads_at_the_end_and_not_everywhere():
    def late_run(key, planned):
        def at(share):
            retain = 7 - 2 * share
            return {"general": retain, "adjacent": retain, "biology": retain + (key == "sgtm") * (share - 0.5)}

        return finished(planned, at(1), [(share, at(share)) for share in (0.25, 0.5, 0.75, 1.0)])

    made = drawn("figure-1", late_run)
    everywhere = claim_of(made, "SGTM has a better trade-off than the weak filter on general")
    at_end = claim_of(made, "SGTM at the end has a better trade-off than the weak filter on general")
    assert (everywhere.ours.value, everywhere.holds) == (-0.25, False)
    assert (at_end.ours.value, at_end.holds) == (0.5, True)


def test_a_run_better_than_no_filter_has_no_penalty_on_its_curve():
    planned = planned_of("figure-1")
    runs = {key: [tradeoff_run(key, planned[key])] for key in ("weak_filter", "no_filter")}
    found = penalty_on_curve(runs["weak_filter"], runs["no_filter"], axes_of("general", "biology"))
    assert found == Estimate(0.0)


@pytest.mark.parametrize(("cost", "holds"), [(-0.1, None), (0.1, None), (0.3, False)])
def test_a_lower_bound_of_the_penalty_refutes_and_never_confirms(cost, holds, monkeypatch):
    monkeypatch.setitem(COSTS, "sgtm", cost)
    penalty = claim_of(drawn("figure-1", tradeoff_run), "costs little compute")
    assert (penalty.ours.value, penalty.holds) == (pytest.approx(100 * max(0, cost) / 2), holds)


def test_military_has_its_own_runs_and_claims():
    made = drawn("figure-13", lambda key, planned: tradeoff_run(key, planned, "military"))
    assert claim_of(made, "higher general loss").paper == "ends with higher retain loss (appendix H)"
    assert "either filtering strategy" in claim_of(made, "than both filters").paper
    assert {run.config.routing.domains for run in planned_of("figure-13").values()} == {("military",)}
    assert all(claim.holds for claim in made.claims)


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_token_vectors_stand_beside_the_runs_of_figure_1_and_their_control(scale):
    figure_1, planned = planned_of("figure-1", scale), planned_of("frontier-topics", scale)
    ours = {key: run for key, run in planned.items() if key.startswith("vectors")}
    assert {key: planned[key] for key in planned if key not in (*ours, TOKEN_RESET)} == figure_1
    assert planned[TOKEN_RESET].config == override(figure_1["weak_filter"].config, {"train.evaluations": 0})
    assert planned[TOKEN_RESET].unlearning.method == TOKEN_RESET
    for run in ours.values():
        back = dict.fromkeys(("norms", "forget_tokens", "forget_weight"))
        theirs = {f"routing.{name}": getattr(figure_1["sgtm"].config.routing, name) for name in back}
        assert run.config.routing.forget_tokens > 0
        assert override(run.config, theirs) == figure_1["sgtm"].config
    made = drawn("frontier-topics", lambda key, run: tradeoff_run("sgtm" if key in ours else key, run), scale)
    for than, lead in (("SGTM", 0.0), ("Weak filter", 0.9 - 0.55), ("Strict filter", 0.9 - 0.7)):
        claims = [claim for claim in made.claims if f"than {than} " in claim.text]
        assert [claim.ours.value for claim in claims] == pytest.approx([lead] * len(ours))
        assert all((claim.holds is True) == (lead > 0) for claim in claims)
    assert len({series.method for series in made.panels[0].series}) == len(planned)


@pytest.mark.parametrize(("biology", "general", "holds"), [(5.5, 5.5, True), (6.5, 5.5, False), (5.5, 5.0, False)])
def test_token_vectors_are_more_than_words_set_back_where_they_take_more_and_cost_less(biology, general, holds):
    def make(key, planned):
        run = tradeoff_run("sgtm", planned)
        control = {"general": general, "adjacent": 5.0, "biology": biology, "retain": general}
        return finished(planned, control) if key == TOKEN_RESET else run

    made = drawn("frontier-topics", make)
    (claim,) = [claim for claim in made.claims if "words set back" in claim.text]
    sgtm = 5 + FORGETS["sgtm"], 5 + COSTS["sgtm"]
    assert (claim.ours.value, claim.holds) == (pytest.approx(sgtm[0] - biology), holds)
    assert f"general {sgtm[1] - general:.2f}" in claim.why
    (end,) = [series for series in made.panels[0].series if series.method == TOKEN_RESET]
    assert [(point.x.value, point.y.value) for point in end.points] == [(general, biology)]


def test_what_is_left_under_attack_is_a_mean_over_its_steps_after_the_start():
    losses = {"sgtm": (6.0, 5.0, 4.5), "weak_filter": (5.0, 4.9, 4.4), TOKEN_RESET: (6.5, 5.2, 4.6)}

    def make(key, planned):
        of = losses.get(key, (6.4, 5.1, 4.6))
        return replace(finished(planned, {"general": 5.0}), relearning=[attack_on(of)])

    made = drawn("frontier-topics-relearning", make)
    found = {claim.text: (pytest.approx(claim.ours.value), claim.holds) for claim in made.claims}
    control = "Weak filter, vectors of biology's words set back"
    assert found == {
        "SGTM: more is left under attack than of: Weak filter": (0.1, True),
        f"SGTM: more is left under attack than of: {control}": (-0.15, False),
        "Token vectors, weight 0.3: more is left under attack than of: Weak filter": (0.2, True),
        f"Token vectors, weight 0.3: more is left under attack than of: {control}": (-0.05, False),
    }
    assert [series.points[0].y.value for series in made.panels[0].series] == [6.0, 6.4, 5.0, 6.5]


def test_figure_7_compares_sgtm_with_every_variant_on_general_and_adjacent_knowledge():
    made = drawn("figure-7", tradeoff_run)
    leads = [claim for claim in made.claims if claim.text.startswith("SGTM has a better trade-off")]
    assert len(leads) == 2 * len(VARIANTS)
    values = [(1.0 - 0.1) - (0.1 - 0.3), (1.0 - 0.2) - 0.1]
    assert [claim.ours.value for claim in leads] == pytest.approx(values * len(VARIANTS)), "general, adjacent"
    appendix_c = [claim.text for claim in leads if "appendix C" in claim.paper]
    assert len(appendix_c) == 4
    assert all("down-projection" in text or "embeddings" in text for text in appendix_c), "not in the paper's figure"
    looks = [(series.method, series.label) for series in made.panels[0].series]
    assert len(set(looks)) == len(VARIANTS) + 4


def test_gradient_routing_ends_where_the_weak_filter_was_in_retain_and_forget_loss():
    made = drawn("figure-7", tradeoff_run)
    whens = {"general": 1 - (0.3 + 0.05) / 2, "adjacent": 1.0, "biology": 1.0}
    for name, when in whens.items():
        claim = claim_of(made, f"Gradient Routing ends at the {name} loss")
        assert (claim.ours.value, claim.holds) == (pytest.approx(100 * when), False)


ON_THE_SAME_CURVE = {
    "no_filter": (0.0, 0.0),
    "weak_filter": (0.0, 0.4),
    "strict_filter": (0.0, 0.5),
    "gradient_routing": (1.5, 0.35),
    "activation_masking": (0.5, 0.48),
    "sgtm_joint_projection": (-0.1, 0.2),
    "sgtm_joint_attention": (-0.1, 0.1),
}
"""How far right of no filter a method is, and by how much its forget loss is higher at equal retain loss."""


def shifted_run(key, planned):
    right, up = ON_THE_SAME_CURVE.get(key, (0.1, 1.0))

    def at(share):
        retain = 7 - 2 * share + right
        return {"general": retain, "adjacent": retain + 1, "biology": retain + up}

    return finished(planned, at(1), [(share, at(share)) for share in (0.25, 0.5, 0.75, 1.0)])


def test_rivals_go_along_the_weak_filters_curve_and_end_early_on_it():
    made = drawn("figure-7", shifted_run)
    for name in ("general", "adjacent"):
        like = claim_of(made, f"Gradient Routing has a trade-off like the weak filter's on {name}")
        assert (like.ours.value, like.holds) == (pytest.approx(100 * 0.05 / 0.4), True)
        like = claim_of(made, f"Activation Masking has a trade-off like the weak filter's on {name}")
        assert (like.ours.value, like.holds) == (pytest.approx(100 * 0.08 / 0.4), True)
    right = claim_of(made, "end with higher losses than the weak filter")
    assert (right.ours.value, right.holds) == (pytest.approx(0.5), True)
    most = claim_of(made, "Gradient Routing costs more compute than Activation Masking")
    assert (most.ours.value, most.holds) == (pytest.approx(1.5 - 0.5), True)
    retain, forget = (claim_of(made, f"Gradient Routing ends at the {name} loss") for name in ("general", "biology"))
    assert (retain.ours.value, retain.holds) == (pytest.approx(100 * (2 - 1.5) / 2), True)
    assert (forget.ours.value, forget.holds) == (pytest.approx(100 * (2 - 1.5 + 0.05) / 2), True)
    assert not [claim.text for claim in made.claims if claim.holds is False]


def test_a_trade_off_far_from_the_weak_filters_is_not_like_it():
    made = drawn("figure-7", tradeoff_run)
    general = claim_of(made, "Gradient Routing has a trade-off like the weak filter's on general")
    weak = 0.5 + 0.05
    assert (general.ours.value, general.holds) == (pytest.approx(100 * (weak - (0.1 - 0.3)) / weak), False)
    adjacent = claim_of(made, "Gradient Routing has a trade-off like the weak filter's on adjacent")
    assert (adjacent.ours.value, adjacent.holds) == (pytest.approx(100 * (0.4 - 0.1) / 0.4), False)
    assert claim_of(made, "costs more compute than Activation Masking").holds is None, "as much"


def test_a_weak_filter_that_forgot_nothing_is_no_measure_of_likeness(monkeypatch):
    monkeypatch.setitem(ON_THE_SAME_CURVE, "weak_filter", (0.0, 0.0))
    like = claim_of(
        drawn("figure-7", shifted_run), "Gradient Routing has a trade-off like the weak filter's on general"
    )
    assert (like.ours, like.holds) == (None, None)


def test_filters_are_better_than_joint_variants_on_general_and_adjacent_knowledge():
    made = drawn("figure-7", shifted_run)
    for name in ("general", "adjacent"):
        weak = claim_of(made, f"The weak filter has a better trade-off than SGTM, joint projection on {name}")
        assert (weak.ours.value, weak.holds) == (pytest.approx(0.4 - 0.2), True)
        strict = claim_of(made, f"The strict filter has a better trade-off than SGTM, joint attention on {name}")
        assert (strict.ours.value, strict.holds) == (pytest.approx(0.5 - 0.1), True)


# --- Compute penalty -------------------------------------------------------------------------------------------------

LAWS = {"biology": (40.0, 0.05), "adjacent": (30.0, 0.04), "general": (20.0, 0.03), "retain": (20.0, 0.03)}
SHARES = {"sgtm": (0.01, 0.6, 0.95), "weak_filter": (0.045, 0.9, 1.1), "strict_filter": (0.04, 0.3, 1.15)}
"""By method, the share of the compute that its losses of biology, adjacent and general articles are worth."""


def on_the_law(key, planned):
    """Losses as a run without a filter has them with a share of the compute; before ablation, SGTM's with twice that."""
    config = planned.config
    compute = 6 * parameters_of(config.model) * config.train.budget.amount
    compute *= config.batch.rows_per_step * config.batch.context
    shares = dict(zip(("biology", "adjacent", "general"), SHARES.get(key, (1.0, 1.0, 1.0)), strict=True))

    def losses(times):
        return {
            name: alpha * (times * shares.get(name, 1.0) * compute) ** -beta for name, (alpha, beta) in LAWS.items()
        }

    return finished(planned, losses(1.0), before=losses(2.0 if key == "sgtm" else 1.0))


@pytest.mark.parametrize("scale", get_args(Scale))
def test_penalties_are_the_compute_that_losses_do_not_need(scale):
    (bars,) = drawn("figure-9", on_the_law, scale).panels
    assert bars.groups == ["Biology", "Adjacent", "General"]
    for method, shares in SHARES.items():
        assert [bar.value for bar in bars.bars[method]] == pytest.approx([100 * (1 - share) for share in shares])


def test_claims_about_penalties_hold_for_the_papers_order():
    made = drawn("figure-9", on_the_law)
    assert all(claim.holds for claim in made.claims)
    assert made.claims[0].ours.value == pytest.approx(95.5), "the weak filter's"
    assert claim_of(made, "adjacent knowledge is between").ours.value == pytest.approx(40)


def test_laws_are_drawn_through_their_runs():
    made = drawn("figure-8", on_the_law)
    for panel, (_, beta), claim in zip(made.panels, LAWS.values(), made.claims, strict=False):
        runs, law = panel.series
        assert len(runs.points) == len(SIZES["smoke"])
        assert claim.ours.value == pytest.approx(beta)
        ends = {point.x.value: point.y.value for point in law.points}
        for point in (runs.points[0], runs.points[-1]):
            nearest = min(ends, key=lambda x: abs(x - point.x.value))
            assert ends[nearest] == pytest.approx(point.y.value)


@pytest.mark.parametrize(("bend", "holds"), [(0.0, True), (0.1, False)])
def test_losses_that_bend_follow_no_power_law(bend, holds):
    def make(key, planned):
        size = math.log(parameters_of(planned.config.model) / 5e5)
        return finished(planned, dict.fromkeys(SETS, 5 * math.exp(-0.1 * size - bend * size**2)))

    assert {claim.holds for claim in drawn("figure-8", make, "small").claims} == {holds}
    general = claim_of(drawn("figure-9", make, "small"), "a small penalty on general")
    assert general.holds is (True if holds else None), "of a law that there is"


def test_losses_that_do_not_fall_are_told_and_not_drawn():
    for name in ("figure-8", "figure-9", "figure-10"):
        made = drawn(name, lambda key, planned: finished(planned, dict.fromkeys(SETS, planned.config.model.d_model)))
        assert not made.panels
        assert "does not fall" in made.claims[0].why


def test_before_ablation_has_losses_and_a_law_of_its_own():
    panels = drawn("figure-10", on_the_law).panels
    assert [panel.title for panel in panels] == ["Biology", "Adjacent", "General"]
    for panel, of_sgtm, of_weak in zip(panels, SHARES["sgtm"], SHARES["weak_filter"], strict=True):
        assert panel.groups == ["SGTM", "Joint down-projection", "Joint embeddings", "Weak filter", "Strict filter"]
        before, after = ([bar.value for bar in panel.bars[f"{stage}_ablation"]] for stage in ("before", "after"))
        assert (before[0], after[0]) == pytest.approx((100 * (1 - 2 * of_sgtm), 100 * (1 - of_sgtm)))
        assert before[3] == pytest.approx(after[3]) == pytest.approx(100 * (1 - of_weak)), "nothing to ablate"


@pytest.mark.parametrize("name", ["figure-9", "figure-10"])
def test_captions_say_that_the_small_scale_has_another_model_than_figure_1s(name):
    one, other = (planned_of(of, "small")["sgtm"].config.model for of in (name, "figure-1"))
    for model in (one, other):
        assert f"{parameters_of(model) / 1e6:.1f}M" in FIGURES[name].caption
        assert f"{model.vocabulary_size:,} tokens" in FIGURES[name].caption
    assert planned_of(name, "paper")["sgtm"].config.model == planned_of("figure-1", "paper")["sgtm"].config.model


# --- Relearning ------------------------------------------------------------------------------------------------------


def attack_on(losses, baseline=4.0, matched_to=None, domain="biology"):
    """The strongest of two attacks has these forget losses at evaluated steps."""
    config = ATTACKS["smoke"]
    steps = [config.evaluate_every * i for i in range(len(losses))]
    points = [
        {"step": step, "losses": {domain: loss, "general": 5.5, "retain": 5.5}}
        for step, loss in zip(steps, losses, strict=True)
    ]
    strongest = {"learning_rate": 2.0, "points": points}
    return {
        "config": to_dict(config),
        "domain": domain,
        "matched_to": matched_to,
        "baseline_loss": baseline,
        "attacks": [{"learning_rate": 1.0, "points": []}, strongest],
        "strongest": 2.0,
        "lowest_loss": min(losses),
        "at_edge": False,
    }


def attacked(losses, matched=False):
    """Runs with an attack; where it starts from a matched checkpoint, with another one from the end of training."""

    def make(key, planned):
        run = tradeoff_run(key, planned)
        if key not in losses:
            return run
        attacks = [attack_on(losses[key], matched_to="sgtm" if matched and key != "sgtm" else None)]
        return replace(run, relearning=[*attacks, attack_on([9.0, 1.0])] if matched and key != "sgtm" else attacks)

    return make


LOSSES = {
    "sgtm": [8.0, 6.0, 5.0, 4.5, 4.2, 4.1, 4.0],
    "weak_filter": [7.0, 6.5, 5.5, 4.5, 3.9],
    "strict_filter": [7.5, 5.5, 5.2, 4.8, 4.6, 3.9],
    "rmu": [8.0, 3.5],
}


def test_relearning_counts_steps_to_the_loss_without_a_filter():
    made = drawn("figure-6a", attacked(LOSSES))
    plot, starts = made.panels
    assert plot.levels == {"No filter": 4.0}
    assert [[point.y.value for point in series.points] for series in plot.series] == list(LOSSES.values())
    assert starts.header == ("", "biology loss", "general loss")
    assert starts.rows == [
        ("SGTM", 8.0, 5.5),
        ("Weak filter", 7.0, 5.5),
        ("Strict filter", 7.5, 5.5),
        ("RMU", 8.0, 5.5),
        ("No filter", 5.0, 5.0),
    ]
    soon, rmu, strict, weak, lead = made.claims
    steps = {"sgtm": 24, "rmu": 4 * 4.0 / 4.5, "strict_filter": 16 + 4 * 0.6 / 0.7, "weak_filter": 12 + 4 * 0.5 / 0.6}
    assert (soon.ours.value, soon.holds) == (pytest.approx(steps["rmu"]), True), "between the first two evaluations"
    ratios = [24 / steps[name] for name in ("rmu", "strict_filter", "weak_filter")]
    assert [claim.ours.value for claim in (rmu, strict, weak)] == pytest.approx(ratios)
    assert (rmu.holds, strict.holds, weak.holds) == (True, True, True)
    assert lead.ours.value == pytest.approx(100 / 6), (
        "SGTM is above the strict filter at the first two evaluations only"
    )
    assert lead.holds is False
    assert [claim.unit for claim in (rmu, strict, weak)] == [
        "times RMU's steps",
        "times the strict filter's steps",
        "times the weak filter's steps",
    ]
    assert lead.unit == "% of SGTM's steps"


def test_attacks_that_never_arrive_decide_only_what_they_can():
    never = [8.0, 7.0, 6.0]
    far = drawn("figure-6a", attacked({**LOSSES, "sgtm": never}))
    assert [claim.holds for claim in far.claims[1:4]] == [True, True, True]
    assert "SGTM more than" in far.claims[1].why
    both = drawn("figure-6a", attacked({**LOSSES, "sgtm": never, "strict_filter": never}))
    assert both.claims[2].holds is None
    soon, rmu, *_ = drawn("figure-6a", attacked({**LOSSES, "rmu": never})).claims
    assert rmu.holds is False, "24 steps against at least 40"
    assert soon.holds is None, "more than 40 steps may be 50"


def test_a_model_that_forgot_nothing_decides_nothing():
    within = {**LOSSES, "rmu": [4.0, 3.5]}
    soon, rmu, *others = drawn("figure-6a", attacked(within)).claims
    for claim in (soon, rmu):
        assert (claim.ours, claim.holds) == (None, None)
        assert claim.why.startswith("RMU had forgotten nothing: in 1 of 1 seeds")
    assert [claim.holds for claim in others] == [True, True, False], "as without RMU"
    soon, *others = drawn("figure-6a", attacked({**LOSSES, "sgtm": [3.9, 3.8]})).claims
    assert soon.holds
    assert all(claim.holds is None and claim.why.startswith("SGTM had forgotten nothing") for claim in others)


@pytest.mark.parametrize(
    ("of_seeds", "holds"),
    [([50], True), ([75], False), ([25, 50], None), ([None], False), ([50, 50, 50], True)],
)
def test_rmu_is_back_within_50_steps(of_seeds, holds):
    def attack(steps):
        return Relearned([(0, {"biology": 9.0})], 500 if steps is None else steps, steps is not None, 4.0, 4.0, False)

    claim = brittle_claim({"rmu": [attack(steps) for steps in of_seeds]}, ATTACKS["paper"])
    assert claim.holds is holds
    assert "262,144 forget tokens" in claim.why


@pytest.mark.parametrize("name", ["figure-6a", "figure-12"])
def test_captions_of_attacks_say_what_differs_from_the_paper(name):
    for words in ("not calibrated", "re-initialised before the attack", "its own learning rate, the strongest"):
        assert words in FIGURES[name].caption


def test_a_lead_ends_where_the_other_is_first_above():
    def of(*losses):
        return Relearned([(10 * i, {"biology": loss}) for i, loss in enumerate(losses)], 0, True, 0.0, 0.0, False)

    assert lead_steps(of(5, 4, 3, 2), of(4, 3, 3, 1)) == 10
    assert lead_steps(of(5, 4), of(6, 3)) == 0


def test_losses_under_attack_are_compared_with_means_over_tokens():
    """Figure 12 is the same without means over categories."""
    matched = attacked(LOSSES, matched=True)

    def without_category_means(key, planned):
        run = matched(key, planned)
        curve = [point | {"category_means": {}} for point in run.results.measures["tradeoff"]]
        return replace(run, results=Results(run.results.provenance, {**run.results.measures, "tradeoff": curve}))

    assert drawn("figure-12", without_category_means) == drawn("figure-12", matched)


def test_matched_attacks_are_those_on_matched_checkpoints():
    made = drawn("figure-12", attacked(LOSSES, matched=True))
    tradeoff, relearning = made.panels
    assert [[point.y.value for point in series.points] for series in relearning.series] == [
        LOSSES[name] for name in ("sgtm", "weak_filter", "strict_filter")
    ]
    starts = [series.points[0] for series in tradeoff.series if not series.line]
    assert [(point.x.value, point.y.value) for point in starts] == [(5.5, 7.0), (5.5, 7.5)]


def test_sgtms_loss_drops_faster_than_the_weak_filters_and_comes_to_it():
    made = drawn("figure-12", attacked(LOSSES, matched=True))
    drop = claim_of(made, "drops faster")
    assert (drop.ours.value, drop.holds) == (pytest.approx((8.0 - 6.0) - (7.0 - 6.5)), True)
    left = claim_of(made, "goes the way of the weak filter's")
    assert (left.ours.value, left.holds) == (pytest.approx(100 * (4.2 - 3.9) / (8.0 - 7.0)), False), "the last of both"
    assert left.unit == "% of the difference at the start"
    near = {**LOSSES, "weak_filter": [7.0, 6.5, 5.5, 4.5, 4.3, 4.2, 4.1, 1.0]}
    left = claim_of(drawn("figure-12", attacked(near, matched=True)), "goes the way of the weak filter's")
    assert (left.ours.value, left.holds) == (pytest.approx(10), True), "until SGTM is at the baseline"
    nothing = claim_of(drawn("figure-12", attacked({**LOSSES, "sgtm": [3.9, 3.8, 3.7]}, matched=True)), "drops faster")
    assert (nothing.ours, nothing.holds) == (None, None)
    below = {**LOSSES, "weak_filter": [8.0, 6.5, 3.9]}
    left = claim_of(drawn("figure-12", attacked(below, matched=True)), "goes the way of the weak filter's")
    assert (left.ours, left.holds) == (None, None)


def test_matched_starts_are_found_on_the_curves_of_the_filters():
    made = drawn("figure-12", attacked(LOSSES, matched=True))
    for name, share in (("weak", (7 - 0.05 - 5.5) / 2), ("strict", (7 - 0.1 - 5.5) / 2)):
        claim = claim_of(made, f"The {name} filter has SGTM's general loss late")
        assert (claim.ours.value, claim.holds) == (pytest.approx(100 * share), True)
    runs = [tradeoff_run("weak_filter", planned_of("figure-12")["weak_filter"])]
    never = [Relearned([(0, {"general": 4.9})], 0, True, 4.0, 4.0, False)]
    claim = matched_claim(runs, never, "weak_filter")
    assert (claim.ours.value, claim.holds) == (100, False), "its curve ends at 4.95"


def test_filters_wait_for_sgtm_and_sgtm_for_no_filter():
    names = [name.split("-")[0] for name in plan(["figure-6b", "figure-12"], "small", seeds=1, figures=ALONE).runs]
    assert names == ["no_filter", "sgtm", "weak_filter", "strict_filter"]


# --- Settings of RMU -------------------------------------------------------------------------------------------------


def test_settings_of_rmu_are_those_of_the_scale_beside_the_papers():
    def rows(scale):
        (table,) = draw(FIGURES["table-4"], scale, {}).panels
        return {name: (value, other) for name, value, other in table.rows}

    paper = {name: value for name, (value, _) in rows("paper").items()}
    told = [250, 100, 20, 4, 16, 7, "5, 6, 7", "MLP weights and biases (W_1, b_1, W_2, b_2)"]
    assert list(paper.values())[:-1] == told, "the paper's table 4, with the depth of its model"
    assert {name: other for name, (_, other) in rows("paper").items() if other} == {"Learning rate": "not told"}
    smoke, small = rows("smoke"), rows("small")
    assert (smoke["alpha"], smoke["Steering coefficient"], smoke["Steps"]) == ((10, 100), (100, 20), (50, 250))
    assert (small["alpha"], small["Learning rate"]) == ((100, ""), (1e-3, "not told"))
    assert (small["Blocks of the model"], small["Layer to unlearn"], small["Update layers"]) == (
        (6, 16),
        (round(7 * 6 / 16), 7),
        ("2, 3", "5, 6, 7"),
    )


# --- Losses token by token -------------------------------------------------------------------------------------------


def token_losses_of(seed=0):
    """Losses of 50 documents by method: base, and with so much more."""
    random = np.random.default_rng(seed)
    base = random.gamma(2.0, 2.0, 2000)
    return {
        "no_filter": base,
        "weak_filter": base + 0.3,
        "strict_filter": base + 0.4,
        "sgtm": base + 1 + random.normal(0, 0.5, len(base)),
    }


def with_token_losses(losses):
    """Runs with these losses of tokens."""
    reference = {"sgtm": "no_filter", "weak_filter": "sgtm", "strict_filter": "sgtm"}
    documents = np.repeat(np.arange(50), 40)

    def make(key, planned):
        measures = {}
        if key in reference:
            shift = asdict(token_loss_shift(losses[key], losses[reference[key]], documents))
            measures["token_losses"] = {"calibrated": {"biology": json.loads(json.dumps(shift))}}
        return finished(planned, dict.fromkeys(SETS, 5.0), **measures)

    return make


def area(x, y):
    return np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2)


def test_densities_of_token_losses_are_smooth_and_end_where_few_are_left():
    losses = token_losses_of()
    densities, _ = drawn("figure-6b", with_token_losses(losses)).panels
    assert [series.method for series in densities.series] == ["sgtm", "weak_filter", "strict_filter", "no_filter"]
    for series in densities.series:
        x, y = np.array([(point.x.value, point.y.value) for point in series.points]).T
        assert np.interp(5.0, x, y) == pytest.approx(np.mean(np.abs(losses[series.method] - 5.0) < 0.5), abs=0.01)
        assert np.mean(losses[series.method] > x[-1]) < 0.005
        assert area(x, y) == pytest.approx(np.mean(losses[series.method] <= x[-1]), abs=0.005)
        assert np.sum(np.diff(np.sign(np.diff(y))) < 0) == 1, "one summit, for all the noise of the bins"


def test_losses_next_to_nothing_are_not_smoothed_beyond_it():
    counts, edges = [100, 0, 0, 0], [0.0, 1.0, 2.0, 3.0, 4.0]
    at = np.linspace(0, 10, 1001)
    assert area(at, smoothed(counts, edges, at)) == pytest.approx(1, abs=1e-3)


def test_leads_of_sgtm_are_at_equal_ranks_and_over_all_seeds():
    seeds = [token_losses_of(seed) for seed in range(3)]
    planned = planned_of("figure-6b")
    groups = {key: [with_token_losses(losses)(key, run) for losses in seeds] for key, run in planned.items()}
    _, leads = draw(FIGURES["figure-6b"], "smoke", groups).panels
    assert leads.levels == {"SGTM": 0.0}
    assert [series.method for series in leads.series] == ["weak_filter", "strict_filter", "no_filter"]
    for series in leads.series:
        assert {point.x.value for point in series.points} > set(leads.x_ticks.values())
        for point in series.points:
            mine, other = (
                [np.quantile(of[name], point.x.value / 100) for of in seeds] for name in ("sgtm", series.method)
            )
            assert astuple(point.y) == pytest.approx(astuple(over_seeds(np.subtract(mine, other))))


def test_token_losses_are_told_of_sgtm_against_both_filters():
    losses = token_losses_of()
    made = drawn("figure-6b", with_token_losses(losses))
    *of_filters, tail = made.claims
    for name, (shift, most, trimmed) in (("weak", of_filters[:3]), ("strict", of_filters[3:])):
        difference = losses["sgtm"] - losses[f"{name}_filter"]
        assert all(f"the {name} filter" in claim.text for claim in (shift, most, trimmed))
        assert shift.ours.value == pytest.approx(difference.mean())
        assert most.ours.value == pytest.approx(100 * np.mean(difference > 0))
        inner = np.sort(difference)[200:-200]
        assert trimmed.ours.value == pytest.approx(100 * inner.mean() / difference.mean())
    by_rank = np.sort(losses["sgtm"]) - np.sort(losses["no_filter"])
    assert tail.ours.value == pytest.approx(100 * by_rank[-20:].sum() / by_rank.sum())
    assert all(claim.holds for claim in made.claims)


def test_a_rise_of_a_few_tokens_is_not_broad():
    documents, reference = np.repeat(np.arange(50), 40), np.full(2000, 3.0)
    few = np.where(np.arange(2000) % 20 == 0, 10.0, 2.99)

    def make(key, planned):
        pair = {"sgtm": (few, reference), "weak_filter": (reference, few), "strict_filter": (reference, few)}
        measures = {}
        if key in pair:
            measures["token_losses"] = {"calibrated": {"biology": asdict(token_loss_shift(*pair[key], documents))}}
        return finished(planned, dict.fromkeys(SETS, 5.0), **measures)

    assert [claim.holds for claim in drawn("figure-6b", make).claims] == [True, False, False] * 2 + [False]


# --- From end to end -------------------------------------------------------------------------------------------------


def tiny(config):
    changes = {
        "data.n_stories": 64,
        "data.n_test_stories": 32,
        "model.d_model": 16,
        "model.d_mlp": 32,
        "model.context": 64,
        "batch.context": 64,
        "routing.forget_units": 8,
        "train.budget.amount": 12,
        "train.evaluations": min(2, config.train.evaluations),
        "train.checkpoint_every": 2,
    }
    return override(config, changes)


def test_two_figures_in_small_from_end_to_end(tmp_path, monkeypatch):
    attack = AttackConfig(steps=2, rows_per_step=2, rows_per_micro_batch=2, context=64, learning_rates=(1e-3,))
    monkeypatch.setitem(ATTACKS, "smoke", attack)
    paths = reproduce(["figure-6b", "figure-12"], "smoke", directory=tmp_path, shorten=tiny, figures=ALONE)
    tokens, matched = (json.loads(path.read_text()) for path in paths)
    assert len(list((tmp_path / "runs").iterdir())) == 4
    assert len(tokens["claims"]) == 3 + 3 + 1
    tradeoff, relearning = matched["panels"]
    assert [len(series["points"]) for series in relearning["series"]] == [2, 2, 2]
    sgtm, *starts = tradeoff["series"][0], *tradeoff["series"][-2:]
    general = sgtm["points"][-1]["x"]["value"]
    assert all(series["points"][0]["x"]["value"] >= general for series in starts), "matched from above"
    assert math.isfinite(matched["claims"][0]["ours"]["value"])
