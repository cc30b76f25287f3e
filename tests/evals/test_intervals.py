"""Intervals over documents: how often they hold the truth, where that is known."""

import numpy as np

from excise.evals.intervals import percentiles, resampled_means
from excise.evals.losses import DocumentLosses, SetLosses

MEAN, N_DOCUMENTS = 3.0, 60


def documents(random, n_columns=1):
    """Sums of losses and counts of documents of very unequal length, whose tokens are much alike."""
    counts = random.geometric(0.02, N_DOCUMENTS) + 1
    of_document = MEAN + random.normal(0, 0.5, (N_DOCUMENTS, n_columns))
    noise = random.normal(0, 1, (N_DOCUMENTS, n_columns)) * np.sqrt(counts)[:, None]
    return of_document * counts[:, None] + noise, counts


def covered(seed, resample):
    totals, counts = documents(np.random.default_rng(seed))
    ((low, high),) = percentiles(resample(totals, counts))
    return low <= MEAN <= high


def test_an_interval_over_documents_holds_the_truth_about_as_often_as_it_says():
    hits = [covered(seed, lambda *of: resampled_means(*of, resamples=300)) for seed in range(250)]
    assert 0.90 <= np.mean(hits) <= 0.98


def test_an_interval_over_tokens_would_be_far_too_narrow():
    """The documents above can tell the two apart."""

    def over_tokens(totals, counts):
        tokens = np.concatenate([np.full(n, total / n) for (total,), n in zip(totals, counts, strict=True)])
        return resampled_means(tokens[:, None], np.ones(len(tokens), int), resamples=100)

    assert np.mean([covered(seed, over_tokens) for seed in range(40)]) < 0.6


def test_the_interval_of_a_mean_over_four_categories_is_half_as_wide():
    random = np.random.default_rng(0)
    categories = [DocumentLosses(*documents(random, 3)) for _ in range(4)]
    whole, *alone = (np.ptp(SetLosses.mean_over(of).intervals["before"]) for of in (categories, *zip(categories)))
    assert 0.4 < whole / np.mean(alone) < 0.6


def test_a_mean_is_a_sum_over_tokens_and_a_count_and_not_a_mean_over_documents():
    drawn = resampled_means(np.array([[1.0], [495.0]]), np.array([1, 99]))
    assert np.unique(drawn).tolist() == [1.0, 4.96, 5.0], "the first twice, both, the second twice"


def test_columns_are_drawn_together():
    totals, counts = documents(np.random.default_rng(1))
    shifted = np.hstack([totals, totals + 0.25 * counts[:, None]])
    drawn = resampled_means(shifted, counts)
    assert np.allclose(drawn[:, 1] - drawn[:, 0], 0.25), "so a constant difference has no error"
    assert np.ptp(drawn[:, 0]) > 0.25


def test_the_same_documents_have_the_same_interval():
    totals, counts = documents(np.random.default_rng(2))
    once, again, other = (percentiles(resampled_means(totals, counts, seed=seed)) for seed in (0, 0, 1))
    assert once == again != other
