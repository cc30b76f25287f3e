"""Every option of a run does what it says: the loop against a naive one, and the losses of one run as recorded."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from excise.config import override
from excise.data.dataset import Data
from excise.data.loader import BatchConfig, Loader
from excise.data.packing import Corpus
from excise.routing.rules import RoutingConfig
from excise.train.loop import train
from excise.train.run import RunConfig, TrainConfig, build_model
from excise.train.schedule import steps
from excise.train.step import Diverged, accumulate
from tests.small import SMALL

RUN = RunConfig(
    model=SMALL,
    routing=RoutingConfig(domains=("spanish",), forget_heads=2, forget_units=4, embeddings="joint", norms="joint"),
    batch=BatchConfig(context=32, rows_per_step=2, rows_per_micro_batch=1, label_mixing="steps"),
    train=TrainConfig(
        budget=steps(8), learning_rate=1e-2, warmup_steps=3, log_every=1, precision="float32", device="cpu"
    ),
)
"""A few steps of one label each, so that parts stand still in some of them."""


def counting(start, stride):
    return [(start + stride * i) % (SMALL.vocabulary_size - 1) for i in range(15)] + [SMALL.vocabulary_size - 1]


@pytest.fixture(scope="module")
def data():
    """Documents that count in ones, half of them labelled retain, and forget documents that count in sevens."""
    documents = [counting(start, 7 if start % 3 == 2 else 1) for start in range(24)]
    corpus = Corpus.of(documents, [start % 3 for start in range(24)])
    return Data(
        train=corpus,
        calibration={},
        test={},
        tokenizer=SimpleNamespace(vocabulary_size=61, sha256="", as_json=b"{}"),
        truth=np.where(corpus.labels == 2, 0, -1),
        sha256="",
    )


def trained(run, data):
    """The parameters after a run, and the loss of each step."""
    losses = []
    model = train(run, data, listeners=[lambda progress: losses.append(progress.loss)])
    return values_of(model), losses


def values_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def naive(run, data):
    """The same, written for reading: AdamW, its schedule and its clipping by hand; only gradients are the package's."""
    config, model, losses = run.train, build_model(run), []
    loader, n_steps = Loader(data.train, run.batch, config.seed), int(config.budget.amount)
    low = torch.autocast("cpu", torch.bfloat16) if config.precision == "bfloat16" else nullcontext()
    state = {}
    for step in range(n_steps):
        loss = accumulate(model, list(loader.step(step)), run.routing, low)
        losses.append(loss.mean)
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        if config.paper_faithful_optimizer:
            gradients = {
                name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()
            }
        if config.clip_norm:
            gradients = clipped(gradients, config.clip_norm)
        for name, gradient in gradients.items():
            parameter = model.get_parameter(name)
            mean, square, count = state.get(name, (0.0, 0.0, 0))
            mean = config.beta_1 * mean + (1 - config.beta_1) * gradient
            square = config.beta_2 * square + (1 - config.beta_2) * gradient**2
            count += 1
            state[name] = mean, square, count
            rate = rate_at(step, n_steps, config) * (config.module_rate if ".forget/" in name else 1.0)
            decay = 0.0 if "norm" in name or "bias" in name else config.weight_decay
            unbiased = mean / (1 - config.beta_1**count), square / (1 - config.beta_2**count)
            with torch.no_grad():
                parameter -= rate * decay * parameter
                parameter -= rate * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    return values_of(model), losses


def clipped(gradients, largest):
    """Gradients scaled so that those of a part, the last word of the names, have at most this norm together."""
    squares = {}
    for name, gradient in gradients.items():
        part = name.rsplit(".", 1)[-1]
        squares[part] = squares.get(part, 0.0) + float(gradient.square().sum())
    scales = {part: min(1.0, largest / math.sqrt(square)) for part, square in squares.items() if square}
    return {name: scales.get(name.rsplit(".", 1)[-1], 1.0) * gradient for name, gradient in gradients.items()}


def rate_at(step, n_steps, config):
    """A straight line up to the peak, then half a cosine down, or the peak but for the last fifth of the steps."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "warmup_stable_decay":
        assert n_steps == 8
        return config.learning_rate * {6: 2 / 3, 7: 1 / 3}.get(step, 1.0)
    share = (step - config.warmup_steps) / (n_steps - config.warmup_steps)
    return config.learning_rate * (1 + math.cos(math.pi * share)) / 2


def distance(some, others):
    """How far two sets of parameters are apart, relative to how far training moves them."""
    start = values_of(build_model(RUN))
    moved = math.sqrt(sum(float((some[name] - start[name]).square().sum()) for name in start))
    return math.sqrt(sum(float((some[name] - others[name]).square().sum()) for name in start)) / moved


OPTIONS = {
    "train.schedule": "warmup_stable_decay",
    "train.learning_rate": 3e-3,
    "train.module_rate": 0.3,
    "train.warmup_steps": 6,
    "train.beta_1": 0.5,
    "train.beta_2": 0.5,
    "train.weight_decay": 0.0,
    "train.clip_norm": 0.2,
    "train.precision": "bfloat16",
    "train.paper_faithful_optimizer": True,
    "train.seed": 1,
    "train.budget": steps(5),
}


@pytest.fixture(scope="module")
def plain(data):
    return naive(RUN, data)


def test_the_loop_is_the_naive_one(data, plain):
    values, losses = trained(RUN, data)
    assert distance(values, plain[0]) < 1e-4
    assert losses == pytest.approx(plain[1], rel=1e-4)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_does_what_it_does_in_the_naive_loop(data, plain, option):
    run = override(RUN, {option: OPTIONS[option]})
    tolerance = 1e-2 if run.train.precision == "bfloat16" else 1e-4
    expected, expected_losses = naive(run, data)
    assert distance(expected, plain[0]) > 2 * tolerance, "the option should matter"
    values, losses = trained(run, data)
    assert distance(values, expected) < tolerance
    assert losses == pytest.approx(expected_losses, rel=tolerance)


GOLDEN_OPTIONS = {
    "train.budget": steps(20),
    "train.clip_norm": 1.0,
    "train.module_rate": 0.5,
    "routing.forget_weight": 0.5,
    "batch.label_mixing": "rows",
}
GOLDEN = """
4.12338 4.09996 4.02774 4.03071 3.75410 3.56544 3.72096 3.35768 3.08630 3.51726
3.74712 3.18733 3.29771 2.95064 2.83160 3.20937 2.75707 3.15595 2.38195 2.78283
"""


def test_a_logged_step_tells_the_loss_of_each_label_and_the_gradient_norm_of_each_part(data):
    records = []
    changes = {
        "batch.label_mixing": "rows",
        "batch.rows_per_step": 12,
        "train.budget": steps(1),
        "train.clip_norm": 1e-3,
    }
    run = override(RUN, changes)
    train(run, data, listeners=[lambda progress: records.append(progress.metrics)])
    model, (batch,) = (
        build_model(run),
        list(Loader(data.train, override(run.batch, {"rows_per_micro_batch": 12}), 0).step(0)),
    )
    whole = accumulate(model, [batch], run.routing)
    squares = {}
    for name, parameter in model.named_parameters():
        part = name.rsplit(".", 1)[-1]
        squares[part] = squares.get(part, 0.0) + float(parameter.grad.square().sum())
    (record,) = records
    norms = {part: math.sqrt(square) for part, square in squares.items()}
    assert record["gradient_norm_by_part"] == pytest.approx(norms, rel=1e-5), "as they are before they are clipped"
    losses, counts = record["loss_by_label"], [int((batch.labels[batch.targets >= 0] == i).sum()) for i in range(3)]
    assert list(losses) == ["unlabeled", "retain", "spanish"]
    mean = sum(n * loss for n, loss in zip(counts, losses.values(), strict=True)) / sum(counts)
    assert record["loss"] == pytest.approx(mean) == pytest.approx(whole.mean, rel=1e-6)


def test_a_part_that_stands_still_has_no_norm_and_a_label_that_does_not_occur_no_loss(data):
    records = []
    train(RUN, data, listeners=[lambda progress: records.append(progress.metrics)])
    found = {tuple(record["loss_by_label"]): set(record["gradient_norm_by_part"]) for record in records}
    assert found["spanish",] == {"joint", "forget/spanish"}
    assert found["retain",] == {"joint", "retain"}


def test_weights_that_the_last_update_made_no_numbers_are_not_kept(data, tmp_path):
    run = override(RUN, {"train.learning_rate": 1e38, "train.warmup_steps": 0, "train.budget": steps(1)})
    with pytest.raises(Diverged, match="left weights that are no numbers") as told:
        train(run, data, tmp_path / "run")
    assert told.value.step == 1
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))


def test_a_run_that_ends_worse_than_a_guess_says_so(data, caplog):
    caplog.set_level("WARNING")
    train(RUN, data)
    assert not caplog.messages
    train(override(RUN, {"train.learning_rate": 0.5, "train.warmup_steps": 0}), data)
    assert any("above the 4.111 of a guess among 61 tokens" in message for message in caplog.messages)


def test_twenty_steps_give_the_recorded_losses(data):
    """A change of these numbers is a change of the method, and has to be meant."""
    _, losses = trained(override(RUN, GOLDEN_OPTIONS), data)
    assert losses == pytest.approx([float(loss) for loss in GOLDEN.split()], rel=1e-4)
