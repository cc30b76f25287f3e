"""The benchmark times what it says, and says what it times."""

import numpy as np
import pytest

from excise import bench as benches
from excise.bench import (
    BILINGUAL_MIX,
    MIXED,
    N_STEPS,
    PLAIN,
    REFERENCE,
    SINGLE,
    SINGLE_LABELS,
    BenchConfig,
    bench,
    documents,
)
from excise.model.gpt import GPTConfig

SMALLEST = GPTConfig(vocabulary_size=64, context=16, n_layers=2, d_model=16, n_heads=4, d_mlp=80)


@pytest.fixture(autouse=True)
def _smallest(monkeypatch):
    monkeypatch.setattr(benches, "SIZES", {"tiny": (SMALLEST, 4)})


def test_every_kind_of_step_is_timed_against_plain_training():
    pytest.importorskip("transformers")
    results = bench(BenchConfig(rounds=3, precision="float32", reference=True))
    timings = {timing.name: timing for timing in results.timings}
    assert set(timings) == {PLAIN, MIXED, *SINGLE_LABELS, SINGLE, REFERENCE}
    assert timings[PLAIN].ratio == 1
    for timing in timings.values():
        assert timing.milliseconds == pytest.approx(1000 * 4 * 16 / timing.tokens_per_second), "full rows"
        assert timing.matrix_share == pytest.approx(
            6 * results.parameters * timing.tokens_per_second / results.peak_tflops / 1e12
        )
    mix = sum(share * timings[name].ratio for share, name in zip(BILINGUAL_MIX, SINGLE_LABELS, strict=True))
    assert timings[SINGLE].ratio == pytest.approx(mix)


def test_documents_are_labelled_in_the_shares_of_the_mix():
    corpus = documents(BenchConfig(rows=100), BILINGUAL_MIX)
    assert np.bincount(corpus.labels).tolist() == [N_STEPS * share for share in (29, 10, 61)]
    assert set(corpus.lengths) == {SMALLEST.context + 1}


def test_stories_have_the_lengths_of_tinystories(monkeypatch):
    monkeypatch.setattr(benches, "SIZES", {"tiny": (GPTConfig(context=2048), 64)})
    lengths = documents(BenchConfig(documents="stories"), BILINGUAL_MIX).lengths
    assert abs(lengths.mean() - (220 + 339) / 2) < 10
