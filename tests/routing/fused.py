"""An addition with its norm, and units with their bias: fused, and step by step, with all their gradients."""

import torch

from excise.routing import fused
from excise.routing.linear import stop_gradient

SOME_ROWS, ALL, NONE = "some", True, False


def norm_both_ways(shape, still_bias, still_norm, device="cpu", half=torch.float32, stream=torch.float32):
    """What the fused addition gives, and what the plain one does; rows that leave bias or norm still are none, some or all."""
    generator, D = torch.Generator(device).manual_seed(0), shape[-1]

    def normal(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    x, value = normal(*shape, dtype=stream).requires_grad_(), normal(*shape, dtype=half).requires_grad_()
    vectors = [normal(D).requires_grad_() for _ in range(3)]
    away = [normal(*shape, dtype=stream), normal(*shape, dtype=half)]
    frozen = [
        torch.rand(*shape[:-1], 1, generator=generator, device=device) < 0.5 if rows == SOME_ROWS else rows
        for rows in (still_bias, still_norm)
    ]
    bias, gain, shift = vectors
    with torch.autocast(device, torch.bfloat16, enabled=half == torch.bfloat16):
        found = fused.add_and_norm(x, fused.Added(value, bias, frozen[0]), gain, shift, frozen[1])
    still = [stop_gradient(vector.expand_as(x), frozen[i]) for vector, i in zip(vectors, (0, 1, 1), strict=True)]
    total = x + value.float() + still[0]
    plain = total, torch.nn.functional.layer_norm(total, (D,)) * still[1] + still[2]
    given = [x, value, *vectors]
    gradients = torch.autograd.grad(found, given, away, allow_unused=True)
    expected = torch.autograd.grad(plain, given, [gradient.float() for gradient in away], allow_unused=True)
    return (*found, *gradients), (*plain, *expected)


def units_both_ways(shape, hidden, frozen, device="cpu", half=torch.float32):
    """The same of units, runs of which, from a unit to another, are hidden from some rows or frozen in some."""
    generator, U = torch.Generator(device).manual_seed(0), shape[-1]
    x, away = (torch.randn(shape, generator=generator, device=device).to(half) for _ in range(2))
    x, bias = x.requires_grad_(), torch.randn(U, generator=generator, device=device).requires_grad_()
    runs, masks = [], []
    for kind in (hidden, frozen):
        rows = [torch.rand(*shape[:-1], 1, generator=generator, device=device) < 0.5 for _ in kind]
        runs.append([(mask, *run) for mask, run in zip(rows, kind, strict=True)])
        masks.append(torch.zeros(shape, dtype=torch.bool, device=device))
        for mask, start, end in runs[-1]:
            masks[-1][..., start:end] |= mask
    found = fused.activate(x, bias, *runs)
    exact = fused.gelu(x.float() + stop_gradient(bias.expand(shape), masks[1])).masked_fill(masks[0], 0.0)
    gradients, expected = (torch.autograd.grad(y, [x, bias], away.to(y.dtype)) for y in (found, exact))
    return (found, *gradients), (exact, *expected)
