"""The kernels for GPUs on a CPU: their arithmetic in Triton's interpreter, and that they compile for a GPU."""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from excise.model.attention import _masked, masked_pattern, pattern_of
from tests.small import batch_of, random_documents

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


@pytest.fixture
def interpreted(monkeypatch):
    """Imports a module of kernels so that Triton interprets them."""
    if torch.cuda.is_available():
        pytest.skip("tests/gpu runs the kernels themselves")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return importlib.import_module


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("head_size", [4, 24])
def test_the_attention_kernels_are_masked_attention(interpreted, head_size, local):
    kernels = interpreted("excise.model.attention_kernels")
    documents = random_documents(12, longest=90)
    batch = batch_of(documents, [[0] * len(document) for document in documents], 150)
    masks, spans = masked_pattern(batch.documents, window=40), pattern_of(batch.documents, window=40)
    mask, span = (masks.nearby, spans.nearby) if local else (masks.everywhere, spans.everywhere)
    qkv = torch.randn(*batch.tokens.shape, 2, 3, head_size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = _masked(qkv, mask, mixed_documents=False)
    away = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected_gradient,) = torch.autograd.grad(expected, qkv, away)
    found, _ = kernels.attend_inside(qkv, span.first, span.last)
    (gradient,) = torch.autograd.grad(found, qkv, away)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("narrow", [False, True])
def test_the_kernels_of_the_head_are_cross_entropy(interpreted, narrow, monkeypatch):
    kernels = interpreted("excise.routing.head_kernels")
    monkeypatch.setattr(kernels, "is_narrow", lambda d_model, dtype: narrow)
    generator, (N, V, W, D) = torch.Generator().manual_seed(0), (150, 700, 704, 24)
    hidden, head, bias = (torch.randn(shape, generator=generator) for shape in ((N, D), (W, D), (W,)))
    bias[V:] = torch.finfo(torch.bfloat16).min / 2
    targets = torch.randint(0, V, (N,), generator=generator)
    logits = (hidden @ head[:V].T + bias[:V]).requires_grad_()
    expected = cross_entropy(logits, targets, reduction="none")
    losses = torch.empty(N)
    gradient = kernels.losses_and_gradients(hidden, head, bias, targets, V, losses)
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient[:, :V], torch.autograd.grad(expected.sum(), logits)[0], rtol=1e-4, atol=1e-6)
    assert not gradient[:, V:].any()


def test_the_kernels_compile_for_a_gpu():
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["_forward_kernel", "_query_kernel", "_key_kernel"] * 2 + [
        "_in_place",
        "_narrow_losses",
        "_narrow_gradients",
    ]
