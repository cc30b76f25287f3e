"""The relearning attack: what the attacker starts from, trains on and may change, and which attack counts."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from excise.config import override
from excise.data.dataset import load_data
from excise.data.packing import Corpus
from excise.evals import relearning
from excise.evals.attacks import judged_by
from excise.evals.lora import merged
from excise.evals.losses import evaluate
from excise.evals.relearning import (
    Attack,
    AttackConfig,
    AttackPoint,
    lowest,
    relearn,
    retain_matched,
    steps_to,
    strongest,
)
from excise.evals.results import Provenance, Results
from excise.labels import forget_part, part_of
from excise.model.ablation import ablate
from excise.train.loop import train
from tests.small import random_documents, routing_for, small_model
from tests.train.test_checkpoint import small_run

FORGET, RETAIN = (Corpus.of(random_documents(n, seed=n), [0] * n) for n in (20, 30))
TEST = {name: Corpus.of(random_documents(8, seed), [0] * 8) for seed, name in enumerate(("retain", "spanish"))}
ROWS, CONTEXT = 8, 10
SMALL_ATTACK = {"rows_per_step": ROWS, "rows_per_micro_batch": 4, "context": CONTEXT, "evaluate_every": 2, "warmup": 0}


def attack(model, forget=FORGET, retain=RETAIN, test=TEST, baseline_loss=0.0, listener=lambda *_: None, **changes):
    config = AttackConfig(**{**SMALL_ATTACK, "steps": 3, "learning_rates": (1e-2,), **changes})
    return relearn(model, forget, retain, test, "spanish", config, baseline_loss, listener)


def attacked_model(model, **changes):
    seen = []
    attack(model, listener=lambda attacked, *_: seen.append(attacked), **changes)
    return seen[-1]


def losses_of(model):
    return {name: evaluate(model, corpus, context=CONTEXT).mean for name, corpus in TEST.items()}


@pytest.fixture
def targets_of_steps(monkeypatch):
    seen = []
    monkeypatch.setattr(relearning, "accumulate", lambda _, batches, *rest: seen.append([b.targets for b in batches]))
    return seen


@pytest.mark.parametrize(("how", "method"), [("zero", "full"), ("reinitialise", "lora"), ("remove", "full")])
def test_losses_at_step_0_are_those_of_the_ablated_model(how, method):
    model = small_model(routing_for())
    points = attack(model, ablation=how, method=method, seed=3).attacks[0].points
    assert points[0] == AttackPoint(0, 0, losses_of(ablate(model, "spanish", how, seed=3)))
    assert [point.step for point in points] == [0, 2, 3]


def test_the_forget_loss_is_followed_and_other_losses_are_there_before_and_after():
    model, seen = small_model(routing_for()), []
    result = attack(model, listener=lambda attacked, *_: seen.append(losses_of(attacked)))
    assert [set(point.losses) for point in result.attacks[0].points] == [set(TEST), {"spanish"}, set(TEST)]
    for point, losses in zip(result.attacks[0].points, seen, strict=True):
        assert point.losses == {name: losses[name] for name in point.losses}


def test_a_set_that_is_part_of_another_is_followed_without_evaluating_it(monkeypatch):
    evaluated = []
    plain = relearning.document_losses
    monkeypatch.setattr(
        relearning, "document_losses", lambda *given, **how: evaluated.append(given[1]) or plain(*given, **how)
    )
    part = TEST["retain"][np.array([6, 1])]
    points = attack(small_model(routing_for()), test={**TEST, "general": part}, evaluate_every=3).attacks[0].points
    assert evaluated == [TEST["retain"], TEST["spanish"]] * len(points)
    test = {"spanish": TEST["spanish"], "general": part}
    alone = attack(small_model(routing_for()), test=test, evaluate_every=3).attacks[0].points
    assert [point.losses["general"] for point in points] == pytest.approx([point.losses["general"] for point in alone])


def test_a_model_at_the_baseline_needs_0_steps_and_one_above_it_more():
    model = small_model(routing_for("none"))
    loss = losses_of(model)["spanish"]
    assert attack(model, baseline_loss=loss).relearning_steps == 0
    assert [attack(model, baseline_loss=loss - 0.01, warmup=n).relearning_steps for n in (0, 10**9)] == [2, None]
    losses = [(0, 5.0), (10, 4.0), (20, 2.0), (30, 3.0)]
    assert [steps_to(losses, to) for to in (5.0, 4.0, 2.5, 1.0)] == [(0, 0), (10, 10), (20, 17.5), (None, None)]


@pytest.mark.parametrize(("how", "method"), [(h, m) for h in ("zero", "reinitialise") for m in ("full", "lora")])
def test_zeroed_units_stay_zero_and_reinitialised_ones_are_trained(how, method):
    model = small_model(routing_for())
    before = dict(ablate(model, "spanish", how).named_parameters())
    attacked = attacked_model(model, ablation=how, method=method, weight_decay=0.0)
    for name, parameter in (merged(attacked) if method == "lora" else attacked).named_parameters():
        if part_of(name) == forget_part("spanish") and (method == "full" or ".weight." in name):
            assert torch.equal(parameter, before[name]) == (how == "zero"), name
            assert bool(parameter.any()) == (how != "zero"), name


def test_every_step_has_as_many_forget_as_retain_tokens(targets_of_steps):
    low, high = ([[t % 30 + first for t in d] for d in random_documents(n, n)] for first, n in ((0, 9), (30, 40)))
    result = attack(small_model(routing_for()), Corpus.of(low, [2] * 9), Corpus.of(high, [1] * 40), steps=6)
    forget_tokens = [int(((step >= 0) & (step < 30)).sum()) for step in map(torch.cat, targets_of_steps)]
    for step, n in zip(map(torch.cat, targets_of_steps), forget_tokens, strict=True):
        assert step.shape == (2 * ROWS, CONTEXT)
        assert abs(int((step >= 30).sum()) - n) <= CONTEXT, "but for one row that packing leaves empty"
    assert result.attacks[0].points[-1].forget_tokens == sum(forget_tokens) > 6 * (ROWS - 1) * CONTEXT


def test_few_documents_are_seen_again_and_again(targets_of_steps):
    forget = Corpus.of([[token] * 9 for token in range(40)], [2] * 40)
    attack(small_model(routing_for()), forget, n_documents=16)
    tokens = torch.cat([micro_batch for step in targets_of_steps for micro_batch in step[: len(step) // 2]])
    assert len(tokens[tokens >= 0].unique()) == 16


@pytest.mark.parametrize("rule", ["sgtm", "none"])
def test_the_given_model_is_left_alone(rule):
    model, same = (small_model(routing_for(rule)) for _ in range(2))
    result = attack(model.requires_grad_(False), learning_rates=(1e-2, 1e-3))
    assert all(map(torch.equal, model.parameters(), same.parameters()))
    assert result.attacks[0].points[0] == result.attacks[1].points[0], "and every rate begins anew"


def test_the_strongest_attack_is_the_quickest_then_the_lowest():
    def made(steps, loss, diverged_at=None):
        return Attack(1e-3, [AttackPoint(9, 0, {"spanish": loss})], diverged_at, steps, steps)

    never, lower, slow, quick, best = (made(*x) for x in ((None, 2.0), (None, 1.0), (9, 2.5), (5, 4.0), (5, 3.0)))
    assert strongest([never, slow, quick, best], "spanish") is best
    assert strongest([never, lower], "spanish") is lower
    quickest = made(0, 0.5, diverged_at=9)
    assert strongest([never, slow, quickest], "spanish") is quickest, "the attacker stops before it diverges"


def test_an_attack_that_overfits_counts_where_it_was_lowest():
    points = [AttackPoint(step, 0, {"spanish": loss}) for step, loss in ((0, 7.0), (5, 5.0), (9, 9.0))]
    overfitted, steady = (Attack(1e-3, of, None, None, None) for of in (points, [AttackPoint(9, 0, {"spanish": 6.0})]))
    assert strongest([steady, overfitted], "spanish") is overfitted
    assert lowest(overfitted, "spanish").step == 5


def test_a_diverging_rate_is_reported_and_does_not_count():
    result = attack(small_model(routing_for()), baseline_loss=100.0, learning_rates=(1e30, 1e-3))
    diverged = [record.diverged_at for record in result.attacks]
    assert (diverged, result.strongest, result.relearning_steps) == ([2, None], 1e-3, 0)
    json.dumps(asdict(result), allow_nan=False)


def test_adapters_leave_all_other_weights_alone_and_can_be_merged():
    model = small_model(routing_for())
    before, adapted = ablate(model, "spanish", "reinitialise"), attacked_model(model, method="lora")
    plain = merged(adapted)
    assert losses_of(plain) == losses_of(adapted) != losses_of(before)
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in before.named_parameters()]
    base = {name.replace(".base.", "."): parameter for name, parameter in adapted.named_parameters()}
    assert all(torch.equal(parameter, base[name]) for name, parameter in before.named_parameters())


def test_relearning_brings_back_the_language_that_a_filter_left_out():
    run = override(small_run(), {"routing.rule": "none", "data.filter": "perfect", "train.budget.amount": 30})
    data, filtered = (load_data(config.data, ("spanish",)) for config in (small_run(), run))
    forget, retain = (data.train[data.train.labels == label] for label in (2, 1))
    result = attack(train(run, filtered), forget, retain, data.test, steps=20, evaluate_every=20)
    first, last = result.attacks[0].points
    assert last.losses["spanish"] < first.losses["spanish"] - 0.5


def test_an_attack_is_not_judged_by_a_baseline_on_other_data():
    source = Provenance("other", "no_filter", 1, "", 1, 1.0, 1, 0, "these", "", "", "float32", "", "")
    record = {"baseline": {**asdict(source), "evaluated_on_sha256": "those"}}
    with pytest.raises(ValueError, match="other was evaluated on other data"):
        judged_by(Results(source, {}), record)


def test_a_retain_matched_checkpoint_is_the_nearest_that_is_no_better():
    losses = [(100, 4.0), (200, 3.5), (300, 3.2), (400, 3.2), (500, 3.0)]
    assert [retain_matched(losses, target) for target in (3.1, 3.2, 3.3)] == [300, 300, 200]
    with pytest.raises(ValueError, match="no checkpoint has a retain loss of 4"):
        retain_matched(losses, 4.5)


@pytest.mark.parametrize("changes", [{"steps": 0}, {"rows_per_step": 6}, {"learning_rates": ()}, {"n_documents": 21}])
def test_nonsense_is_refused_by_name(changes):
    with pytest.raises(ValueError, match=f"attack.{next(iter(changes))}="):
        attack(small_model(routing_for()), **changes)
