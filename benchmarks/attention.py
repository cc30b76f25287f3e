"""The attention kernels: whether they are right, and what they take beside other attention.

    python benchmarks/attention.py [--sizes 4 8 16 32 64] [--rounds 20]

Errors are relative, against masked attention in float32, on rows of one to four documents. Times are medians on rows of
one document, in bfloat16. Everything reads queries, keys and values where the projection wrote them and leaves their
gradients there, so padding and copies count. `flex_attention` is compiled and has the same mask, with heads of at least
16 numbers; `scaled_dot_product_attention` is causal and knows no window.

Shapes: B rows, T positions, H heads, K head size.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention

from excise.model.attention import attend, masked_pattern, pattern_of
from excise.routing.kernels import HAS_KERNELS

H, WINDOW = 32, 256
SHAPES = ((128, 512, 1), (64, 1024, 32))
"""B and T, and the smallest head size that is timed with them."""
CHECKED_ROWS = 4
LARGEST_ERRORS = {"forward": 0.01, "queries": 0.02, "keys": 0.02, "values": 0.02}
SMALLEST_FLEX_HEAD = 16
WARM_UP_ROUNDS = 3

Attention = Callable[[Tensor], Tensor]


def cases(sizes: Sequence[int]) -> Iterator[tuple[int, int, int, bool]]:
    """B, T, K, and whether attention is within the window."""
    return ((B, T, K, local) for B, T, least in SHAPES for K in sizes if K >= least for local in (False, True))


def random_heads(B: int, T: int, K: int, device: str) -> tuple[Tensor, Tensor]:
    """Queries, keys and values (B T H 3 K), and a gradient of what comes of them (B T H K)."""
    generator = torch.Generator(device).manual_seed(0)
    qkv, away = (torch.randn(B, T, H, n, K, device=device, generator=generator) for n in (3, 1))
    return (qkv / 2).bfloat16().requires_grad_(), away.squeeze(3).bfloat16()


def errors(B: int, T: int, K: int, local: bool, window: int = WINDOW, device: str = "cuda") -> dict[str, float]:
    """Relative errors of the kernels, forward and in each gradient; row i has i + 1 documents."""
    qkv, away = random_heads(B, T, K, device)
    documents = torch.arange(T, device=device) * torch.arange(1, B + 1, device=device).unsqueeze(-1) // T  # B T
    exact = qkv.detach().float().requires_grad_()
    found = attend(qkv, pattern_of(documents, window), local=local)
    expected = attend(exact, masked_pattern(documents, window), local=local)
    (gradient,) = torch.autograd.grad(found, qkv, away)
    (expected_gradient,) = torch.autograd.grad(expected, exact, away.float())
    pairs = zip((found.detach(), *gradient.unbind(3)), (expected.detach(), *expected_gradient.unbind(3)), strict=True)
    return {name: float((a - b).norm() / b.norm()) for name, (a, b) in zip(LARGEST_ERRORS, pairs, strict=True)}


def kernels(documents: Tensor, local: bool) -> Attention:
    pattern = pattern_of(documents, WINDOW)
    return lambda qkv: attend(qkv, pattern, local=local)


def flexible(documents: Tensor, local: bool) -> Attention:
    """`flex_attention` inside documents."""
    B, T = documents.shape
    reach = WINDOW if local else T

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (documents[row, query] == documents[row, key]) & (query >= key) & (query - key < reach)

    mask = create_block_mask(seen, B, None, T, T, device=str(documents.device))

    def attention(qkv: Tensor) -> Tensor:
        K = qkv.shape[-1]
        wide = qkv if K >= SMALLEST_FLEX_HEAD else pad(qkv, (0, SMALLEST_FLEX_HEAD - K))
        q, k, v = wide.transpose(1, 2).unbind(3)  # B H T K each
        return flex_attention(q, k, v, block_mask=mask, scale=1.0)[..., :K].transpose(1, 2)

    torch._dynamo.reset()  # past its limit of recompilations it would fall back to an attention that is not compiled
    return torch.compile(attention, dynamic=False)


def causal(documents: Tensor, local: bool) -> Attention:
    def attention(qkv: Tensor) -> Tensor:
        q, k, v = qkv.transpose(1, 2).unbind(3)  # B H T K each
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0).transpose(1, 2)

    return attention


def milliseconds(attention: Attention, qkv: Tensor, away: Tensor, rounds: int) -> str:
    """Medians of passes forward and back."""
    marks = []
    for _ in range(WARM_UP_ROUNDS + rounds):
        start, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        y = attention(qkv)
        middle.record()
        torch.autograd.grad(y, qkv, away)
        end.record()
        marks.append((start, middle, end))
    torch.cuda.synchronize()
    forward = statistics.median(start.elapsed_time(middle) for start, middle, _ in marks[WARM_UP_ROUNDS:])
    backward = statistics.median(middle.elapsed_time(end) for _, middle, end in marks[WARM_UP_ROUNDS:])
    return f"{forward:.3f} / {backward:.3f}"


def table(columns: Sequence[str]) -> None:
    print(f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}", sep="\n", flush=True)


def line(B: int, T: int, K: int, local: bool, numbers: Sequence[str]) -> None:
    reach = f"window {WINDOW}" if local else "everywhere"
    print(f"| {K} (B {B}, T {T}) | {reach} | {' | '.join(numbers)} |", flush=True)


def check(sizes: Sequence[int]) -> None:
    """Print the errors of the kernels, and end here where one is too large."""
    failed = False
    table(("head size", "reach", "error forward", *(f"of the gradient of {name}" for name in list(LARGEST_ERRORS)[1:])))
    for _, T, K, local in cases(sizes):
        found = errors(CHECKED_ROWS, T, K, local)
        line(CHECKED_ROWS, T, K, local, [f"{error:.2%}" for error in found.values()])
        failed |= not all(found[name] <= largest for name, largest in LARGEST_ERRORS.items())
    if failed:
        raise SystemExit("an error is larger than 1 % forward or 2 % in a gradient; the kernels were not timed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    if not HAS_KERNELS:
        raise SystemExit("the attention kernels need Triton and a CUDA device of compute capability 8.0 or more")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, {H} heads")
    check(args.sizes)
    print("\nMilliseconds forward / backward")
    table(("head size", "reach", "ours", "`flex_attention`", "`scaled_dot_product_attention`, causal"))
    for B, T, K, local in cases(args.sizes):
        qkv, away = random_heads(B, T, K, "cuda")
        documents = torch.zeros(B, T, dtype=torch.long, device="cuda")
        kinds = [make(documents, local) for make in (kernels, flexible, causal)]
        line(B, T, K, local, [milliseconds(attention, qkv, away, args.rounds) for attention in kinds])


if __name__ == "__main__":
    main()
