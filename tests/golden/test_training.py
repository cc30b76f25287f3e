"""Trainings and gradients are what they were when they were recorded, and the recordings notice a ten-thousandth of them."""

import dataclasses
from itertools import product

import pytest
import torch

from excise.routing.rules import RULES
from tests.golden import adapter
from tests.golden.cases import CASES, DOMAINS, GRADIENT_CASES, STEPS, Case
from tests.golden.recordings import (
    Accumulate,
    assert_gradients_as_recorded,
    assert_losses_as_recorded,
    initial_weights,
    recorded_losses,
)

LITTLE = 1e-4
ROUTED = [case for case in CASES if case.rule != "none"]
WITH_SGD = [*{case.rule: case for case in CASES if case.optimizer == "sgd" and not case.clip_norm}.values()]
"""A training of each rule that shows by how much a gradient is too large, as AdamW, which divides by that, does not."""
CLIPPED_ADAMW = next(case for case in ROUTED if case.optimizer == "adamw" and case.clip_norm)
"""In this AdamW shows it too, as clipping holds back some steps and others not."""


def named(cases):
    return {"argvalues": cases, "ids": [case.name for case in cases]}


@pytest.mark.parametrize("case", **named(CASES))
def test_losses_of_a_training_are_as_recorded(case):
    assert_losses_as_recorded(case)


@pytest.mark.parametrize("case", **named(GRADIENT_CASES))
def test_gradients_of_a_step_are_as_recorded(case):
    assert_gradients_as_recorded(case)


def test_trainings_cover_every_rule_with_each_optimizer_and_every_option_with_two_rules():
    assert {(case.rule, case.optimizer, case.rows) for case in CASES} == {
        *product(RULES, ("adamw", "sgd"), ("mixed", "single"))
    }
    for option in dataclasses.fields(Case)[3:]:
        assert len({case.rule for case in CASES if getattr(case, option.name) != option.default}) > 1, option.name
    assert {name: len(losses) for name, losses in recorded_losses().items()} == {case.name: STEPS for case in CASES}


@pytest.mark.parametrize("case", **named([CASES[0], CASES[2], *GRADIENT_CASES[-1:]]))
def test_all_parameters_have_a_place_in_a_full_tensor(case):
    model, weights = adapter.model_of(case, initial_weights()), initial_weights()
    for parameter in model.parameters():
        parameter.grad = parameter.detach()
    read = adapter.gradients(model)
    assert sum(map(torch.numel, read.values())) == sum(map(torch.numel, model.parameters()))
    for name, tensor in read.items():
        assert torch.equal(tensor, weights[name]), name


def letting_through(share: float, verb: str) -> Accumulate:
    """Training that lets a share of the gradients through which its rule hides, detaches or freezes."""

    def accumulate(case, model, micro_batches):
        with adapter.without(verb, case.rule):
            adapter.accumulate(case, model, micro_batches)
        let_free = [parameter.grad for parameter in model.parameters()]
        loss = adapter.accumulate(case, model, micro_batches)
        for parameter, free in zip(model.parameters(), let_free, strict=True):
            routed = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if free is not None and not torch.equal(free, routed):
                parameter.grad = routed + share * (free - routed)
        return loss

    return accumulate


def enlarging(share: float, part: str) -> Accumulate:
    """Training with the gradient of one part too large by a share of it."""

    def accumulate(case, model, micro_batches):
        loss = adapter.accumulate(case, model, micro_batches)
        for parameter in adapter.parameters_of(model, part):
            if parameter.grad is not None:
                parameter.grad *= 1 + share
        return loss

    return accumulate


def parts_in(case):
    model = adapter.model_of(case, initial_weights())
    every = ("retain", "joint", *(f"forget/{domain}" for domain in DOMAINS))
    return [part for part in every if adapter.parameters_of(model, part)]


def leaks(case):
    """What a training's rule keeps from some parameters."""
    freezes = "retain" in (case.embeddings, case.norms) and case.forget_weight > 0
    return [*["freeze"] * freezes, *["detach"] * (case.rule == "gradient_routing"), "hide"]


LEAKS = [(case, verb) for case in ROUTED for verb in leaks(case) if verb == "freeze" or case in WITH_SGD]


@pytest.mark.parametrize(("case", "verb"), LEAKS, ids=lambda of: getattr(of, "name", of))
def test_losses_tell_of_a_little_of_a_gradient_that_a_rule_keeps_back(case, verb):
    with pytest.raises(AssertionError, match=r"^step \d+: "):
        assert_losses_as_recorded(case, letting_through(LITTLE, verb))


@pytest.mark.parametrize("case", **named([*WITH_SGD, CLIPPED_ADAMW]))
def test_losses_tell_of_a_part_whose_gradient_is_a_little_too_large(case):
    for part in parts_in(case):
        with pytest.raises(AssertionError, match=r"^step \d+: "):
            assert_losses_as_recorded(case, enlarging(LITTLE, part))


@pytest.mark.parametrize("case", **named([case for case in GRADIENT_CASES if case.rows == "mixed"]))
def test_gradients_tell_of_both(case):
    changes = [letting_through(LITTLE, verb) for verb in leaks(case) if case.rule != "none"]
    for change in (*changes, *(enlarging(LITTLE, part) for part in parts_in(case))):
        with pytest.raises(AssertionError, match=r"none is recorded|relative error"):
            assert_gradients_as_recorded(case, change)
