"""Packing: every prediction once, nothing across documents, hardly any padding."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.data.packing import IGNORED, Corpus, collate, cut, evaluation_batches, pack, pack_tightly, truncate

END = 0


def corpus_of(lengths, labels=None):
    """Documents of these numbers of tokens; token values tell document and place."""
    documents = [[100 * i + j + 1 for j in range(n - 1)] + [END] for i, n in enumerate(lengths)]
    return documents, Corpus.of(documents, labels or [0] * len(documents))


lengths_and_context = st.tuples(st.lists(st.integers(2, 40), min_size=1, max_size=30), st.integers(1, 50))


@settings(deadline=None, max_examples=60)
@given(lengths_and_context)
def test_every_pair_of_every_document_is_there_once_and_none_other(case):
    lengths, context = case
    documents, corpus = corpus_of(lengths)
    found = []
    for batch in evaluation_batches(corpus, context, rows_per_batch=3):
        kept = batch.targets != IGNORED
        found += list(zip(batch.tokens[kept].tolist(), batch.targets[kept].tolist(), strict=True))
    assert sorted(found) == sorted(pair for d in documents for pair in pairwise(d))


@settings(deadline=None, max_examples=60)
@given(lengths_and_context)
def test_positions_restart_and_documents_of_up_to_a_row_stay_whole(case):
    lengths, context = case
    _, corpus = corpus_of(lengths)
    pieces = cut(corpus, context)
    rows = pack(pieces.length, context)
    assert sorted(piece for row in rows for piece in row) == list(range(len(pieces)))
    batch = collate(corpus, pieces, rows, context)
    for number, (document, length) in enumerate(zip(pieces.document, pieces.length, strict=True)):
        here = batch.documents == number
        assert batch.positions[here].tolist() == list(range(length))
        if lengths[document] - 1 <= context:
            assert length == lengths[document] - 1


@settings(deadline=None, max_examples=60)
@given(lengths_and_context, st.randoms())
def test_number_of_rows_does_not_depend_on_the_order(case, random):
    lengths, context = case
    shuffled = random.sample(lengths, len(lengths))
    count = [len(pack(cut(corpus_of(order)[1], context).length, context)) for order in (lengths, shuffled)]
    assert count[0] == count[1]


def test_packing_leaves_little_padding_at_the_lengths_of_stories():
    lengths = np.random.default_rng(0).normal(220, 60, 5000).clip(30, 700).astype(np.int64)
    lengths = np.minimum(lengths, 512)
    packed, padded = len(pack(lengths, 512)), len(lengths)
    assert 1 - lengths.sum() / (packed * 512) < 0.02
    assert packed < 0.5 * padded


def test_truncation_keeps_the_beginning_of_each_document():
    documents, corpus = corpus_of([30, 3])
    pieces = truncate(corpus, 8)
    batch = collate(corpus, pieces, [[0], [1]], 8)
    assert batch.tokens[0].tolist() == documents[0][:8]
    assert batch.targets[1].tolist() == [*documents[1][1:], *[IGNORED] * 6]
    assert batch.n_predicted == 10


def test_a_row_has_the_label_of_its_target():
    _, corpus = corpus_of([5, 4], [[0, 0, 2, 2, 1], 1])
    (batch,) = evaluation_batches(corpus, 7, rows_per_batch=9)
    assert batch.labels[0].tolist() == [0, 2, 2, 1, 1, 1, 1]
    assert batch.label_ids == {0, 1, 2}
    assert batch.mixed_documents


def test_padding_does_not_count_as_a_label():
    _, corpus = corpus_of([5], [2])
    (batch,) = evaluation_batches(corpus, 20, rows_per_batch=9)
    assert batch.label_ids == {2}
    assert not batch.mixed_documents
    assert batch.n_predicted == 4


@pytest.mark.parametrize("context", [64, 96, 100])
def test_documents_are_cut_only_to_fill_rows_and_every_pair_stays_once(context):
    lengths = np.random.default_rng(0).integers(40, 70, 300)
    _, corpus = corpus_of(lengths.tolist())
    whole = cut(corpus, context)
    pieces, rows = pack_tightly(whole, context)
    used = [piece for row in rows for piece in row]
    covered = sorted(int(p) for i in used for p in range(pieces.start[i], pieces.start[i] + pieces.length[i]))
    expected = sorted(
        int(p) for i in range(len(whole)) for p in range(whole.start[i], whole.start[i] + whole.length[i])
    )
    assert covered == expected
    assert all(sum(int(pieces.length[i]) for i in row) <= context for row in rows)
    assert len(used) <= len(whole) + len(rows)
    assert 1 - len(covered) / (len(rows) * context) < 0.02
    for i in used:
        document = int(pieces.document[i])
        assert corpus.starts[document] <= pieces.start[i]
        assert pieces.start[i] + pieces.length[i] < corpus.starts[document] + corpus.lengths[document]
