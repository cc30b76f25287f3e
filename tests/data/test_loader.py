"""The loader: step k is a function of k, and labels mix as they are told to."""

import numpy as np
import pytest
import torch

from excise.data.loader import BatchConfig, Loader
from excise.data.packing import IGNORED, Corpus


def corpus(n=60, seed=0):
    random = np.random.default_rng(seed)
    documents = [random.integers(1, 50, random.integers(5, 30)).tolist() for _ in range(n)]
    return Corpus.of(documents, [int(label) for label in random.integers(0, 4, n)])


def config(**options):
    return BatchConfig(**{"context": 32, "rows_per_step": 4, "rows_per_micro_batch": 2, **options})


def pairs_of_epoch(loader, epoch=0):
    found = []
    for step in range(epoch * loader.steps_per_epoch, (epoch + 1) * loader.steps_per_epoch):
        for batch in loader.step(step):
            kept = batch.targets != IGNORED
            found += list(zip(batch.tokens[kept].tolist(), batch.targets[kept].tolist(), strict=True))
    return found


def test_steps_read_ahead_are_the_same_steps():
    ahead, loader = Loader(corpus(), config(), seed=0), Loader(corpus(), config(), seed=0)
    numbers = range(3, 2 * loader.steps_per_epoch)
    for number, batches in zip(numbers, ahead.steps(numbers, torch.device("cpu")), strict=True):
        for a, b in zip(batches, loader.step(number), strict=True):
            assert torch.equal(a.tokens, b.tokens)
            assert torch.equal(a.labels, b.labels)


@pytest.mark.parametrize("label_mixing", ["rows", "micro_batches", "steps"])
def test_an_epoch_holds_every_pair_once_in_another_order_than_the_last(label_mixing):
    loader = Loader(corpus(), config(label_mixing=label_mixing), seed=1)
    first, second = pairs_of_epoch(loader, 0), pairs_of_epoch(loader, 1)
    assert len(first) == loader.tokens_per_epoch == corpus().n_predicted
    assert sorted(first) == sorted(second)
    assert first != second


@pytest.mark.parametrize("label_mixing", ["rows", "micro_batches", "steps"])
def test_a_step_does_not_depend_on_the_steps_before_it(label_mixing):
    through, fresh = (Loader(corpus(), config(label_mixing=label_mixing), seed=1) for _ in range(2))
    for step in range(2 * through.steps_per_epoch):
        batches = list(through.step(step))
        if step % 3 == 0:
            for a, b in zip(batches, fresh.step(step), strict=True):
                assert torch.equal(a.tokens, b.tokens)
                assert torch.equal(a.labels, b.labels)


def test_rows_mix_labels():
    loader = Loader(corpus(), config(), seed=1)
    assert any(len(batch.label_ids) > 1 for step in range(loader.steps_per_epoch) for batch in loader.step(step))


def test_micro_batches_have_one_label_and_steps_several():
    loader = Loader(corpus(), config(label_mixing="micro_batches"), seed=1)
    steps = [[batch.label_ids for batch in loader.step(step)] for step in range(loader.steps_per_epoch)]
    assert all(len(labels) == 1 for step in steps for labels in step)
    assert any(len(set(step)) > 1 for step in steps)


def test_steps_have_one_label():
    loader = Loader(corpus(), config(label_mixing="steps"), seed=1)
    steps = [{batch.label_ids for batch in loader.step(step)} for step in range(loader.steps_per_epoch)]
    assert all(len(labels) == 1 and len(next(iter(labels))) == 1 for labels in steps)
    assert len({next(iter(labels)) for labels in steps}) == 4


def test_padded_rows_hold_one_document_each():
    loader = Loader(corpus(), config(packing="padded"), seed=1)
    rows = [row for step in range(loader.steps_per_epoch) for batch in loader.step(step) for row in batch.documents]
    assert len(rows) == len(corpus())
    assert all(len(set(row.tolist()) - {-1}) == 1 for row in rows)
    assert loader.padding > 0.2 > Loader(corpus(), config(), seed=1).padding


def test_documents_that_mix_labels_are_refused_where_a_batch_has_one_label():
    mixed = Corpus.of([[1, 2, 3, 4]] * 4, [[0, 0, 2, 2], 1, 1, 2])
    assert len(list(Loader(mixed, config(), seed=0).step(0)))
    with pytest.raises(ValueError, match=r"set batch.label_mixing to 'rows' instead of 'steps'"):
        Loader(mixed, config(label_mixing="steps"), seed=0)


def test_a_corpus_without_pairs_is_an_empty_split():
    with pytest.raises(ValueError, match="training split is empty"):
        Loader(Corpus.of([[5]], [0]), config(), seed=0)


def test_a_step_must_be_whole_micro_batches():
    with pytest.raises(ValueError, match="must be a multiple of"):
        config(rows_per_micro_batch=3)
