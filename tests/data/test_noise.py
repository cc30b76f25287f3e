"""The simulated classifier: every share exact, no document drawn twice."""

import numpy as np
import pytest

from excise.data.noise import ADJACENT, OTHER, simulate_labels
from excise.labels import FIRST_DOMAIN_ID, RETAIN_ID, UNLABELED_ID

TRUTH = np.repeat([0, 1, ADJACENT, OTHER], [200, 100, 80, 620])


def draw(seed=0, domains=("spanish", "biology"), **shares):
    shares = {"undiscovered_share": 0.0, "retain_share": 0.25, "adjacent_retain_share": 0.1, **shares}
    return simulate_labels(TRUTH, domains, seed=seed, **shares)


def n(labels, truth, label):
    return int(((truth == TRUTH) & (labels == label)).sum())


@pytest.mark.parametrize("undiscovered_share", [0, 0.01, 0.333, 1])
@pytest.mark.parametrize("false_positive_rate", [0, 0.05, 0.4])
def test_shares_are_exact_to_one_document(undiscovered_share, false_positive_rate):
    labels = draw(undiscovered_share=undiscovered_share, false_positive_rate=false_positive_rate)
    assert n(labels, OTHER, RETAIN_ID) == 155
    assert n(labels, ADJACENT, RETAIN_ID) == 8
    for domain, size in ((0, 200), (1, 100)):
        assert abs(n(labels, domain, FIRST_DOMAIN_ID + domain) - (1 - undiscovered_share) * size) <= 0.5
        false = sum(n(labels, truth, FIRST_DOMAIN_ID + domain) for truth in (OTHER, ADJACENT))
        assert abs(false - false_positive_rate * (700 - 163)) <= 1
        assert n(labels, domain, RETAIN_ID) == 0
        assert n(labels, domain, FIRST_DOMAIN_ID + 1 - domain) == 0
    assert len(labels) == len(TRUTH)


def test_retain_data_does_not_depend_on_the_errors():
    clean, noisy = draw(), draw(undiscovered_share=0.5, false_positive_rate=0.3)
    assert np.array_equal(clean == RETAIN_ID, noisy == RETAIN_ID)


def test_a_false_positive_rate_of_one_leaves_nothing_unlabeled_but_the_undiscovered():
    labels = simulate_labels(
        TRUTH,
        ("spanish",),
        undiscovered_share=0.1,
        false_positive_rate=1,
        retain_share=0.1,
        adjacent_retain_share=0.1,
        seed=0,
    )
    assert int((labels[TRUTH < 0] == UNLABELED_ID).sum()) == 0


def test_one_seed_gives_one_draw():
    assert np.array_equal(draw(3, undiscovered_share=0.3), draw(3, undiscovered_share=0.3))
    assert not np.array_equal(draw(3, undiscovered_share=0.3), draw(4, undiscovered_share=0.3))
