"""The arithmetic of the kernels in Triton's interpreter; test_kernels.py runs this file in a process of its own."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from excise.model.attention import _masked, masked_pattern, pattern_of
from excise.model.attention_kernels import attend_inside, forward_tile, key_tile, query_tile
from excise.routing import head, head_kernels
from tests.small import batch_of, random_documents


def sees_whole_tiles(mask, tile):
    """Whether some block of queries sees all of some block of keys, which the kernels then meet without a mask."""
    M, N = tile["M"], tile["N"]
    return mask.unfold(2, M, M).unfold(3, N, N).flatten(-2).all(-1).any().item()


@pytest.mark.parametrize("long_documents", [False, True])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("head_size", [4, 24])
def test_the_attention_kernels_are_masked_attention(head_size, local, long_documents):
    n, longest, context, window, n_heads = (3, 332, 333, 140, 1) if long_documents else (12, 90, 150, 40, 2)
    documents = random_documents(n, longest=longest)
    batch = batch_of(documents, [[0] * len(document) for document in documents], context)
    masks, spans = masked_pattern(batch.documents, window), pattern_of(batch.documents, window)
    mask, span = (masks.nearby, spans.nearby) if local else (masks.everywhere, spans.everywhere)
    for tile in (forward_tile(head_size), query_tile(head_size), key_tile(head_size)):
        assert sees_whole_tiles(mask, tile) == long_documents
    shape = (*batch.tokens.shape, n_heads, 3, head_size)
    qkv = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = _masked(qkv, mask, mixed_documents=False)
    away = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected_gradient,) = torch.autograd.grad(expected, qkv, away)
    found, _ = attend_inside(qkv, span.first, span.last)
    (gradient,) = torch.autograd.grad(found, qkv, away)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_kernels_of_the_head_are_cross_entropy(narrow, monkeypatch):
    monkeypatch.setattr(head_kernels, "is_narrow", lambda d_model, dtype: narrow)
    generator, (N, V, W, D) = torch.Generator().manual_seed(0), (150, 700, 704, 24)
    hidden, table, bias = (torch.randn(shape, generator=generator) for shape in ((N, D), (W, D), (W,)))
    bias[V:] = torch.finfo(torch.bfloat16).min / 2
    targets = torch.randint(0, V, (N,), generator=generator)
    logits = (hidden @ table[:V].T + bias[:V]).requires_grad_()
    expected = cross_entropy(logits, targets, reduction="none")
    losses = torch.empty(N)
    gradient = head_kernels.losses_and_gradients(hidden, table, bias, targets, V, losses)
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient[:, :V], torch.autograd.grad(expected.sum(), logits)[0], rtol=1e-4, atol=1e-6)
    assert not gradient[:, V:].any()


@pytest.mark.parametrize("tokens", [(slice(0, 40), slice(40, 1100)), (slice(3, 90),), (slice(0, 2190),)])
def test_a_narrow_head_with_vectors_that_some_rows_see_is_cross_entropy(tokens, monkeypatch):
    """Of one module and of two; tokens before the first have none, tiles are met whole and in part, and a row is written by
    several programs."""
    monkeypatch.setattr(head_kernels, "is_narrow", lambda *_: True)
    monkeypatch.setattr(head, "head_kernels", head_kernels, raising=False)
    generator, (N, V, W, D) = torch.Generator().manual_seed(0), (150, 2200, 2240, 24)
    hidden, table, bias = (torch.randn(shape, generator=generator) for shape in ((N, D), (W, D), (W,)))
    bias[V:] = torch.finfo(torch.bfloat16).min / 2
    targets = torch.randint(0, V, (N,), generator=generator)
    gated = [
        head.AddedRows(
            at, torch.randn(at.stop - at.start, D, generator=generator), torch.rand(N, 1, generator=generator) < 0.5
        )
        for at in tokens
    ]
    logits = hidden @ table[:V].T + bias[:V]
    for of in gated:
        logits[:, of.tokens] += ~of.hidden * (hidden @ of.weight.T)
    logits.requires_grad_()
    expected = cross_entropy(logits, targets, reduction="none")
    losses, gates = torch.empty(N), head._gates(gated, hidden)
    gradient = head_kernels.losses_and_gradients(hidden, table, bias, targets, V, losses, gates)
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient[:, :V], torch.autograd.grad(expected.sum(), logits)[0], rtol=1e-4, atol=1e-6)
    assert not gradient[:, V:].any()


@pytest.mark.parametrize("has_bias", [False, True])
def test_losses_without_gradient_are_cross_entropy(has_bias, monkeypatch):
    monkeypatch.setattr(head, "_has_narrow_kernels", lambda *_: True)
    monkeypatch.setattr(head, "head_kernels", head_kernels, raising=False)
    generator, (N, V, D) = torch.Generator().manual_seed(0), (150, 700, 24)
    hidden, weight, bias, shift = (torch.randn(shape, generator=generator) for shape in ((N, D), (V, D), (V,), (V,)))
    targets = torch.randint(0, V, (N,), generator=generator)
    logits = hidden @ weight.T + (bias if has_bias else 0)
    expected = torch.stack([cross_entropy(x, targets, reduction="none") for x in (logits, logits + shift)])
    found = head.losses_without_gradient(hidden, weight, bias if has_bias else None, targets, [None, shift])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
