"""The recorded trainings and gradients: how they are made, where they lie, and what counts as equal to them."""

import json
from collections.abc import Callable
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tests.golden import adapter
from tests.golden.cases import FOLDER, STEPS, Case, Document, micro_batches

WEIGHTS = FOLDER / "weights.safetensors"
LOSSES = FOLDER / "losses.json"
GRADIENTS = FOLDER / "gradients.safetensors"

Accumulate = Callable[[Case, Any, list[list[Document]]], float]
"""Leaves the gradients of a step in a model, and returns its loss."""


def losses_of(
    case: Case,
    accumulate: Accumulate = adapter.accumulate,
    watch: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """The loss of each step of a training in float64, of which one who watches is told at once."""
    losses = []
    with adapter.in_float64():
        model = adapter.model_of(case, initial_weights())
        optimizer = adapter.optimizer_of(case, model)
        for step in range(STEPS):
            losses.append(accumulate(case, model, micro_batches(case, step)))
            watch(step, losses[-1])
            if case.clip_norm:
                adapter.clip(model, case.clip_norm)
            optimizer.step()
    return losses


def gradients_of(case: Case, accumulate: Accumulate = adapter.accumulate) -> dict[str, Tensor]:
    """The gradients of all full tensors in the first step of a training, in float32."""
    model = adapter.model_of(case, {name: weight.float() for name, weight in initial_weights().items()})
    accumulate(case, model, micro_batches(case, 0))
    return adapter.gradients(model)


def assert_losses_as_recorded(case: Case, accumulate: Accumulate = adapter.accumulate) -> None:
    """To a millionth in every step; the first that is not ends the training."""
    recorded = recorded_losses()[case.name]

    def check(step: int, loss: float) -> None:
        assert abs(loss - recorded[step]) <= 1e-6 * recorded[step], f"step {step}: {loss!r} and not {recorded[step]!r}"

    losses_of(case, accumulate, check)


def assert_gradients_as_recorded(case: Case, accumulate: Accumulate = adapter.accumulate) -> None:
    """To 1e-5 of the norm of every full tensor, and zero where that is recorded."""
    found, recorded = gradients_of(case, accumulate), recorded_gradients(case)
    assert found.keys() == recorded.keys()
    for name, expected in recorded.items():
        assert not found[name][expected == 0].any(), f"{name}: a gradient where none is recorded"
        error = (found[name] - expected).norm()
        assert error <= 1e-5 * expected.norm(), f"{name}: relative error {float(error / expected.norm()):.1e}"


def initial_weights() -> dict[str, Tensor]:
    return load_file(WEIGHTS)


def recorded_losses() -> dict[str, list[float]]:
    return json.loads(LOSSES.read_text())


def recorded_gradients(case: Case) -> dict[str, Tensor]:
    beginning = f"{case.name}: "
    every = load_file(GRADIENTS).items()
    return {name.removeprefix(beginning): gradient for name, gradient in every if name.startswith(beginning)}
