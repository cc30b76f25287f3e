"""The in-context attack: the same targets after more and more text, and an interval for the change."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from excise.data.packing import Corpus
from excise.evals.in_context import in_context, paired_bootstrap
from excise.evals.losses import evaluate
from tests.small import random_documents, routing_for, small_model

FORGET, RETAIN = random_documents(20, seed=1), random_documents(15, seed=2)
TARGET_TOKENS, SEED = 6, 3


def corpus(documents):
    return Corpus.of(documents, [0] * len(documents))


def attack(model, forget=FORGET, target_tokens=TARGET_TOKENS, **options):
    return in_context(model, corpus(forget), corpus(RETAIN), target_tokens=target_tokens, seed=SEED, **options)


def naive_loss(model, source, n):
    """The loss per token of one document after another, each behind the last n tokens of those before it in a ring."""
    shuffled, ring = ([d[i] for i in np.random.default_rng(SEED).permutation(len(d))] for d in (FORGET, source))
    losses = []
    for i, document in enumerate(shuffled):
        place = i % len(ring)
        before = [token for other in ring[place + 1 :] + ring[:place] for token in other]
        tokens = before[len(before) - n :] + document[: TARGET_TOKENS + 1]
        log_p = model(torch.tensor([tokens[:-1]]))[0].log_softmax(-1)
        losses += [-float(log_p[at, tokens[at + 1]]) for at in range(n, len(tokens) - 1)]
    return np.mean(losses)


@torch.no_grad()
def test_losses_are_those_of_a_loop_over_documents():
    model = small_model(routing_for())
    result = attack(model, lengths=(4, 26))
    for curve, source in ((result.forget, FORGET), (result.retain, RETAIN)):
        assert [point.prefix_tokens for point in curve] == [0, 4, 26]
        assert [point.loss for point in curve] == pytest.approx([naive_loss(model, source, n) for n in (0, 4, 26)])
        assert [point.change for point in curve] == pytest.approx([point.loss - curve[0].loss for point in curve])


def test_without_context_the_loss_is_that_of_the_truncated_documents():
    model = small_model(routing_for())
    expected = evaluate(model, corpus([document[: TARGET_TOKENS + 1] for document in FORGET]))
    result = attack(model)
    assert [point.prefix_tokens for point in result.forget] == [0, 16], "powers of two up to what fits"
    assert result.forget[0].loss == result.retain[0].loss == pytest.approx(expected.mean, rel=1e-5)
    assert (result.n_documents, result.n_tokens) == (len(FORGET), expected.n_tokens)
    assert json.loads(json.dumps(asdict(result), allow_nan=False)) == asdict(attack(model)), "and the seed decides"


def test_a_change_that_all_documents_share_is_certain_however_they_differ():
    sums = np.random.default_rng(0).normal(50, 10, 400)
    none, some = paired_bootstrap((0, 8), np.stack([sums, sums - 5]), np.full(400, 10.0), seed=0)
    assert some.change_interval == pytest.approx([-0.5, -0.5])
    half = 1.96 * sums.std() / 10 / 400**0.5
    assert none.loss_interval == pytest.approx([none.loss - half, none.loss + half], abs=0.2 * half)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (27,)}, "do not fit into 32"),
        ({"target_tokens": 0}, "do not fit into 32"),
        ({"lengths": (26,), "forget": FORGET[:3]}, "a context of 26 tokens is more than"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        attack(small_model(routing_for()), **options)
