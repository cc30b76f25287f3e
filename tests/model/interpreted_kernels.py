"""The arithmetic of the kernels in Triton's interpreter; test_kernels.py runs this file in a process of its own."""

import math
from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from excise.model import attention, gpt
from excise.model.attention import _masked, masked_pattern, pattern_of
from excise.model.attention_kernels import attend_inside, forward_tile, key_tile, query_tile
from excise.model.gpt import compile_blocks
from excise.routing import fused, fused_kernels, head, head_kernels, split
from excise.routing.route import Route
from excise.train.step import accumulate
from tests.routing.fused import ALL, NONE, SOME_ROWS, norm_both_ways, units_both_ways
from tests.small import batch_of, random_documents, routing_for, small_model


def sees_whole_tiles(mask, tile):
    """Whether some block of queries sees all of some block of keys, which the kernels then meet without a mask."""
    M, N = tile["M"], tile["N"]
    return mask.unfold(2, M, M).unfold(3, N, N).flatten(-2).all(-1).any().item()


def test_the_attention_kernels_hide_heads():
    """From some rows, others from other rows: outputs and gradients are those of attention that is hidden afterwards."""
    generator, (B, T, H, K) = torch.Generator().manual_seed(0), (2, 80, 5, 8)
    documents = torch.stack([torch.arange(T) // 30, torch.arange(T) // 50])
    span = pattern_of(documents, T).everywhere
    qkv = torch.randn(B, T, H, 3, K, generator=generator).requires_grad_()
    rows = torch.stack([documents == 1, documents != 0])
    hidden = torch.zeros(B, T, H, 1, dtype=torch.bool)
    hidden[:, :, 1:3], hidden[:, :, 4:] = rows[0, :, :, None, None], rows[1, :, :, None, None]
    expected = attend_inside(qkv, span.first, span.last, None, [])[0].masked_fill(hidden, 0.0)
    found, _ = attend_inside(qkv, span.first, span.last, rows, [1, 3, 4, 5])
    assert torch.equal(found, expected)
    away = torch.randn(found.shape, generator=generator)
    gradients = [torch.autograd.grad(y, qkv, away)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_hidden_heads_are_counted_among_those_that_are_left():
    """Where the heads of one module are gone and those of another hidden from some rows."""
    routing = routing_for("sgtm", 2)
    layer, rows = small_model(routing).blocks[0].attention, torch.ones(1, 4, 1, dtype=torch.bool)
    heads = [unit.size // layer.head_size for unit in layer.out.units]
    for gone, hidden in ((1, 2), (2, 1)):
        route = Route(hide={layer.out.units[gone].part: True, layer.out.units[hidden].part: rows})
        ((_, begin, end),) = layer._hidden_heads(route)
        assert (begin, end) == (heads[0], heads[0] + heads[hidden])


def assert_same_gradients(fast, plain):
    for (name, expected), found in zip(plain.named_parameters(), fast.parameters(), strict=True):
        assert (expected.grad is None) == (found.grad is None), name
        if expected.grad is not None:
            torch.testing.assert_close(
                found.grad, expected.grad, rtol=1e-3, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
            )


def fuse_by_kernels(monkeypatch):
    for name in ("norm_backward", "units_backward"):
        monkeypatch.setattr(fused, name, getattr(fused_kernels, name), raising=False)


@pytest.fixture
def by_kernels(monkeypatch):
    """Everything that there are kernels for, by these."""
    monkeypatch.setattr(attention, "attend_inside", attend_inside, raising=False)
    monkeypatch.setattr(head, "head_kernels", head_kernels, raising=False)
    monkeypatch.setattr(head, "_has_narrow_kernels", lambda *_: True)
    fuse_by_kernels(monkeypatch)
    # Few programs with much to do each, as the interpreter does one after the other.
    monkeypatch.setattr(fused_kernels, "SHARES", 2)
    monkeypatch.setattr(fused_kernels, "norm_tile", lambda D: {"ROWS": 64})
    monkeypatch.setattr(fused_kernels, "units_tile", lambda U: {"ROWS": 64, "UNITS": 32})
    monkeypatch.setattr(gpt, "has_kernels", lambda *_: True)
    for module in (gpt, split):
        monkeypatch.setattr(module, "fuses", lambda *_: True)


@pytest.mark.parametrize("rule", ["sgtm", "gradient_routing", "activation_masking"])
@pytest.mark.parametrize(("n_domains", "labels"), [(1, [1]), (1, [2]), (3, [0, 1, 2, 3, 4])], ids=str)
def test_a_step_by_the_kernels_is_the_plain_step(rule, n_domains, labels, request):
    """Of documents of all labels, so that heads and units of several modules are hidden, each from some rows, and biases and
    norms are frozen in others; and of one label, which hides or freezes a part from all rows, once where a block has no
    unit left."""
    changes = {"norms": "retain"} if n_domains > 1 else {"forget_units": 0} if labels == [2] else {}
    routing = routing_for(rule, n_domains, **changes)
    documents = random_documents(2 * len(labels) + 1)
    batch = batch_of(documents, [[labels[i % len(labels)]] * len(d) for i, d in enumerate(documents)])
    own = {domain: [10 * i, 10 * i + 5, 40 + i] for i, domain in enumerate(routing.domains)}
    plain, fast = small_model(routing, own=own), small_model(routing, own=own)
    accumulate(plain, [batch], routing)
    request.getfixturevalue("by_kernels")
    accumulate(fast, [batch], routing)
    assert_same_gradients(fast, plain)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("labels", [[0, 1, 2], [1], [2]], ids=str)
def test_a_compiled_step_by_the_kernels_is_the_plain_step(labels, request):
    torch._dynamo.reset()
    routing, documents = routing_for("sgtm"), random_documents(6)
    batch = batch_of(documents, [[labels[i % len(labels)]] * len(d) for i, d in enumerate(documents)])
    plain, fast = small_model(routing), small_model(routing)
    accumulate(plain, [batch], routing)
    request.getfixturevalue("by_kernels")
    compile_blocks(fast, backend="aot_eager")
    accumulate(fast, [batch], routing)
    assert_same_gradients(fast, plain)


@pytest.mark.parametrize("long_documents", [False, True])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("head_size", [4, 16, 24])
def test_the_attention_kernels_are_masked_attention(head_size, local, long_documents):
    n, longest, context, window, n_heads = (3, 332, 333, 200, 1) if long_documents else (12, 90, 150, 40, 2)
    documents = random_documents(n, longest=longest)
    batch = batch_of(documents, [[0] * len(document) for document in documents], context)
    masks, spans = masked_pattern(batch.documents, window), pattern_of(batch.documents, window)
    mask, span = (masks.nearby, spans.nearby) if local else (masks.everywhere, spans.everywhere)
    for tile in (forward_tile(head_size), query_tile(head_size), key_tile(head_size)):
        assert sees_whole_tiles(mask, tile) or not long_documents
    shape = (*batch.tokens.shape, n_heads, 3, head_size)
    qkv = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = _masked(qkv, mask, mixed_documents=False)
    away = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected_gradient,) = torch.autograd.grad(expected, qkv, away)
    found, _ = attend_inside(qkv, span.first, span.last, None, [])
    (gradient,) = torch.autograd.grad(found, qkv, away)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


def assert_close_or_absent(found, expected):
    for ours, plain in zip(found, expected, strict=True):
        assert (ours is None) == (plain is None)
        if plain is not None:
            torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("d_model", [24, 32])
@pytest.mark.parametrize("n_shares", [1, 3, 100])
@pytest.mark.parametrize(
    "still", [(NONE, NONE), (SOME_ROWS, NONE), (NONE, SOME_ROWS), (SOME_ROWS, ALL), (ALL, SOME_ROWS)]
)
def test_an_addition_with_its_norm_is_the_plain_one(d_model, n_shares, still, monkeypatch):
    """In one share of the rows, in several of which the last is short, and in shares of one tile."""
    fuse_by_kernels(monkeypatch)
    monkeypatch.setattr(fused_kernels, "SHARES", n_shares)
    assert_close_or_absent(*norm_both_ways((3, 7, d_model), *still))


@pytest.mark.parametrize("still", [(NONE, NONE), (SOME_ROWS, NONE), (ALL, SOME_ROWS)])
def test_an_addition_to_a_stream_in_half_precision_is_the_plain_one(still, monkeypatch):
    fuse_by_kernels(monkeypatch)
    found, expected = norm_both_ways((3, 7, 24), *still, half=torch.bfloat16, stream=torch.bfloat16)
    assert [of.dtype for of in found[:4]] == [torch.bfloat16] * 4, (
        "sum, norm, and the gradients of both that were added"
    )
    for ours, plain in zip(found, expected, strict=True):
        assert (ours is None) == (plain is None)
        assert plain is None or (ours.float() - plain).norm() < 0.01 * plain.norm()


def test_a_frozen_row_that_is_no_number_leaves_gain_and_shift_alone(monkeypatch):
    fuse_by_kernels(monkeypatch)
    x, value, (bias, gain, shift) = torch.randn(1, 3, 24), torch.randn(1, 3, 24), torch.randn(3, 24)
    x[0, 1, 5] = math.inf
    frozen = torch.tensor([[[False], [True], [False]]])
    given = [bias.requires_grad_(), gain.requires_grad_(), shift.requires_grad_()]
    _, normed = fused.add_and_norm(x, fused.Added(value, bias, frozen), gain, shift, frozen)
    assert all(d.isfinite().all() for d in torch.autograd.grad(normed.sum(), given))


@pytest.mark.parametrize("n_shares", [1, 3, 100])
@pytest.mark.parametrize("runs", [([], []), ([(3, 20)], [(0, 3)]), ([(0, 9), (9, 12)], [(12, 40), (30, 40)])])
def test_units_with_their_bias_are_the_plain_ones(n_shares, runs, monkeypatch):
    """Of units that do not fill their last tile."""
    fuse_by_kernels(monkeypatch)
    monkeypatch.setattr(fused_kernels, "SHARES", n_shares)
    monkeypatch.setattr(fused_kernels, "units_tile", lambda U: {"ROWS": 2, "UNITS": 16})
    assert_close_or_absent(*units_both_ways((3, 7, 40), *runs))


@pytest.mark.parametrize("ahead", [-60.0, 0.0, 120.0, 300.0])
def test_the_kernel_of_a_wide_head_has_finite_losses_and_gradients_however_wrong_a_row_is(ahead):
    """Up to a loss of 131 it is exact in float32; beyond, the tokens that are ahead count alike."""
    logits, losses, targets = torch.zeros(2, 64), torch.empty(2), torch.tensor([3, 4])
    logits[0, 7:9] = ahead
    expected = cross_entropy(logits, targets, reduction="none")
    gradient, scale = head_kernels.losses_and_gradients_in_place(logits.clone(), targets, 64, losses)
    gradient *= scale
    torch.testing.assert_close(losses, expected.clamp_max(191 * math.log(2)), rtol=1e-5, atol=1e-5)
    total = 62 + 2 * math.exp(ahead)
    assert gradient[0, 3] == pytest.approx(1 / total - 1)
    assert gradient[0, 7:9].tolist() == pytest.approx([math.exp(ahead) / total] * 2)
    torch.testing.assert_close(gradient.sum(1), torch.zeros(2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("token", [3, 7])
def test_the_kernel_of_a_wide_head_reports_a_logit_that_is_no_number(token):
    """That of the target and that of another."""
    logits, losses = torch.zeros(2, 64), torch.empty(2)
    logits[0, token] = math.nan
    head_kernels.losses_and_gradients_in_place(logits, torch.tensor([3, 4]), 64, losses)
    assert losses.isfinite().tolist() == [False, True]


def test_rows_are_multiplied_by_their_weights():
    rows, weights, out = torch.randn(9, 600), torch.rand(9, 1), torch.zeros(9, 608)
    head_kernels.weigh(rows, weights, out[:, :600])
    assert torch.equal(out[:, :600], rows * weights)
    assert not out[:, 600:].any()


def test_the_kernel_of_a_wide_head_is_cross_entropy():
    generator, (N, V, W) = torch.Generator().manual_seed(0), (150, 700, 704)
    logits = torch.randn(N, W, generator=generator)
    targets = torch.randint(0, V, (N,), generator=generator)
    known = logits[:, :V].clone().requires_grad_()
    expected = cross_entropy(known, targets, reduction="none")
    losses = torch.empty(N)
    gradient, scale = head_kernels.losses_and_gradients_in_place(logits, targets, V, losses)
    gradient = gradient * scale
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient[:, :V], torch.autograd.grad(expected.sum(), known)[0], rtol=1e-4, atol=1e-6)
    assert not gradient[:, V:].any()


ADDED = {
    "none": [],
    "that some rows see": [(slice(3, 90), SOME_ROWS, NONE)],
    "of two modules, one frozen in some rows": [
        (slice(0, 40), SOME_ROWS, SOME_ROWS),
        (slice(40, 150), SOME_ROWS, NONE),
    ],
    "that all rows see": [(slice(0, 90), NONE, SOME_ROWS)],
    "that is frozen": [(slice(0, 90), SOME_ROWS, ALL)],
    "of no token": [(slice(0, 0), SOME_ROWS, NONE)],
}


@pytest.mark.parametrize("frozen", [NONE, SOME_ROWS, ALL])
@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("as_in_training", [False, True])
def test_a_head_without_logits_is_the_plain_one(added, frozen, as_in_training, monkeypatch):
    """Losses and all gradients, of rows with targets and without. In training rows and tokens fill their tiles, the last
    with padding, and a program meets all rows; otherwise neither is so, and there is no bias."""
    monkeypatch.setattr(head, "head_kernels", head_kernels, raising=False)
    if as_in_training:
        monkeypatch.setattr(head, "MULTIPLE", {"cpu": 128})
        monkeypatch.setattr(head_kernels, "PROGRAMS", 1)
    generator, (N, V, D) = torch.Generator().manual_seed(0), (128, 250, 24) if as_in_training else (150, 300, 24)
    normal = partial(torch.randn, generator=generator)

    def rows(which):
        return torch.rand(N, 1, generator=generator) < 0.5 if which == SOME_ROWS else which

    hidden, weight = normal(D, N).T.requires_grad_(), normal(V, D).requires_grad_()
    bias = normal(V).requires_grad_() if as_in_training else None
    vectors = [normal(at.stop - at.start, D).requires_grad_() for at, _, _ in added]
    parts = [
        head.AddedRows(at, of, rows(unseen), rows(still))
        for (at, unseen, still), of in zip(added, vectors, strict=True)
    ]
    given = (rows(frozen), parts, torch.randint(-1, V, (N,), generator=generator), torch.rand(N, generator=generator))
    found = []
    for narrow in (True, False):
        monkeypatch.setattr(head, "_has_narrow_kernels", lambda *_, narrow=narrow: narrow)
        total, losses = head.head_losses(hidden, weight, bias, *given)
        wanted = [hidden, weight, *vectors] if bias is None else [hidden, weight, bias, *vectors]
        gradients = torch.autograd.grad(total, wanted, allow_unused=True)
        found.append([total.detach(), losses, *gradients])
    assert_close_or_absent(*found)


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
