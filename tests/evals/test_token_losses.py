"""Broad shifts and outliers, told apart where it is known which is which."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy.stats import trim_mean

from excise.evals.token_losses import QUANTILES, token_loss_shift

N_TOKENS, N_DOCUMENTS = 20_000, 100
RANDOM = np.random.default_rng(0)
REFERENCE = RANDOM.exponential(2.5, N_TOKENS)
DOCUMENTS = np.sort(RANDOM.integers(N_DOCUMENTS, size=N_TOKENS))
NOISE = RANDOM.normal(0, 0.8, N_TOKENS)
"""What two runs of one method differ by, token by token."""


def in_few_tokens(shift, share):
    """The same rise of the mean, all of it in a share of the tokens."""
    chosen = np.random.default_rng(1).permutation(N_TOKENS)[: round(share * N_TOKENS)]
    raised = np.zeros(N_TOKENS)
    raised[chosen] = shift / share
    return raised


@pytest.mark.parametrize("noise", [0, NOISE], ids=["exact", "noisy"])
@pytest.mark.parametrize("shift", [0.3, REFERENCE * 0.2], ids=["uniform", "proportional"])
def test_a_shift_of_all_tokens_is_broad(shift, noise):
    measured = token_loss_shift(REFERENCE + shift + noise, REFERENCE, DOCUMENTS)
    assert measured.broad
    assert measured.median_shift > 0.5 * measured.shift
    assert measured.trimmed_shift["0.1"] > 0.5 * measured.shift


@pytest.mark.parametrize("noise", [0, NOISE], ids=["exact", "noisy"])
@pytest.mark.parametrize("share", [0.01, 0.05])
def test_the_same_rise_in_few_tokens_is_not_broad_even_if_the_others_rise_a_little(share, noise):
    measured = token_loss_shift(REFERENCE + in_few_tokens(0.28, share) + 0.02 + noise, REFERENCE, DOCUMENTS)
    assert measured.shift == pytest.approx(0.3, abs=0.02)
    assert not measured.broad
    assert measured.trimmed_shift["0.1"] < 0.35 * measured.shift


def test_a_heavy_tail_holds_the_rise_and_a_broad_shift_only_its_share_of_it():
    tail, broad = (token_loss_shift(REFERENCE + up, REFERENCE, DOCUMENTS) for up in (in_few_tokens(0.3, 0.01), 0.3))
    assert tail.rise_in_top["0.1"] > 0.8
    assert broad.rise_in_top == pytest.approx({"0.01": 0.01, "0.1": 0.1})


def test_a_rise_in_a_third_of_the_tokens_is_not_broad_for_lack_of_a_majority():
    measured = token_loss_shift(REFERENCE + in_few_tokens(0.3, 1 / 3), REFERENCE, DOCUMENTS)
    assert measured.trimmed_shift["0.1"] > 0.5 * measured.shift
    assert measured.risen == pytest.approx(1 / 3, abs=1e-3)
    assert not measured.broad


@pytest.mark.parametrize("fall", [0.0, 0.3])
def test_a_loss_that_did_not_rise_is_no_broad_shift(fall):
    measured = token_loss_shift(REFERENCE - fall, REFERENCE, DOCUMENTS)
    assert (measured.broad, measured.rise_in_top, measured.risen) == (False, None, 0)


def test_means_are_the_reported_losses_whatever_the_precision_of_the_tokens():
    losses = (REFERENCE + NOISE).astype(np.float32)
    measured = token_loss_shift(losses, REFERENCE, DOCUMENTS)
    assert measured.losses.mean == pytest.approx(sum(losses.tolist()) / N_TOKENS, rel=1e-9)
    assert measured.reference.mean == pytest.approx(sum(REFERENCE.tolist()) / N_TOKENS, rel=1e-9)
    assert measured.shift == pytest.approx(measured.losses.mean - measured.reference.mean, abs=1e-9)


def test_distributions_share_edges_and_count_every_token():
    measured = token_loss_shift(REFERENCE * 3, REFERENCE, DOCUMENTS)
    assert measured.edges[0] == 0 < REFERENCE.max() * 3 <= measured.edges[-1]
    short = token_loss_shift(REFERENCE * 3, REFERENCE, DOCUMENTS, edges=[0, 1, 5])
    assert short.reference.counts == [(REFERENCE < 1).sum(), (REFERENCE >= 1).sum()]
    assert sum(measured.losses.counts) == sum(short.losses.counts) == N_TOKENS
    for q in QUANTILES:
        assert np.mean(REFERENCE <= measured.reference.quantiles[str(q)]) == pytest.approx(q, abs=1e-3)


def test_shifts_and_shares_are_what_plain_definitions_give():
    losses = REFERENCE + NOISE + 0.3
    measured = token_loss_shift(losses, REFERENCE, DOCUMENTS)
    highest = np.sort(losses)[-200:].sum() - np.sort(REFERENCE)[-200:].sum()
    assert measured.rise_in_top["0.01"] == pytest.approx(highest / (losses.sum() - REFERENCE.sum()))
    assert measured.trimmed_shift["0.1"] == pytest.approx(trim_mean(losses - REFERENCE, 0.1))
    assert measured.risen == np.mean(losses > REFERENCE)


def test_intervals_are_over_documents():
    """Tokens of a document that all move together say no more than one of them."""
    of_document = np.random.default_rng(2).normal(0.3, 1, N_DOCUMENTS)
    measured = token_loss_shift(REFERENCE + of_document[DOCUMENTS], REFERENCE, DOCUMENTS)
    low, high = measured.shift_interval
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(N_DOCUMENTS), rel=0.3)
    assert measured.risen_interval[0] < measured.risen < measured.risen_interval[1]


def test_results_are_small_and_survive_json():
    text = json.dumps(asdict(token_loss_shift(REFERENCE + NOISE, REFERENCE, DOCUMENTS)), allow_nan=False)
    assert len(text) < 5000


def test_losses_that_do_not_belong_together_are_refused():
    bad = [(REFERENCE[1:], DOCUMENTS, "one number for each token"), (REFERENCE * np.nan, DOCUMENTS, "not finite")]
    for losses, documents, sentence in [*bad, (REFERENCE, np.zeros(N_TOKENS, int), "fewer than two documents")]:
        with pytest.raises(ValueError, match=sentence):
            token_loss_shift(losses, REFERENCE, documents)
