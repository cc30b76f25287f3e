"""Continuations: what may be asked for."""

import math

import pytest

from excise.evals.samples import continue_text
from tests.evals.test_losses import LetterTokenizer
from tests.small import routing_for, small_model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": math.nan}, "temperature=nan must be a number from 0 up"),
        ({"temperature": math.inf}, "temperature=inf must be a number from 0 up"),
        ({"temperature": -1.0}, "temperature=-1 must be a number from 0 up"),
        ({"n_tokens": -3}, "n_tokens=-3 must be at least 1"),
        ({"top_k": 0}, "top_k=0 must be at least 1"),
        ({"seed": -1}, "seed=-1 cannot be negative"),
    ],
)
def test_nonsense_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        continue_text(small_model(routing_for("sgtm")), LetterTokenizer(), "5 6 7", **options)
