"""Whole training steps in a way that is not in use, beside the one that is.

    python benchmarks/ways.py --size 254m

`algorithms`: every matrix product of the compiled blocks by the fastest of the algorithms that cuBLASLt proposes for it,
which the compiler is made to call in place of torch's.
"""

import argparse
import statistics
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int32, c_uint32, c_uint64, c_void_p
from functools import cache, partial

import torch
from epilogues import (
    BIAS_POINTER,
    COMPUTE_32F,
    EPILOGUE,
    PREFERENCE_WORKSPACE,
    R_16BF,
    R_32F,
    TRANSPOSE_A,
    WORKSPACE,
    Proposal,
    call,
    created,
    milliseconds,
    put,
)
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from excise import bench
from excise.routing.rules import RoutingConfig
from excise.train.run import TrainConfig

TRANSPOSE_B, BIAS = 4, 4
N_ALGORITHMS, LARGEST_ERROR = 16, 0.02
WAYS = ("plain", "algorithms")
Product = Callable[[Tensor, Tensor, Tensor | None, Tensor], None]
CHOSEN: dict[object, Product] = {}
"""By shapes and strides."""


@cache
def handle_and_workspace() -> tuple[c_void_p, Tensor]:
    return created(""), torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")


def is_transposed(matrix: Tensor) -> bool:
    """Whether it lies column by column."""
    return matrix.stride(1) != 1


def candidates(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> list[Product]:
    """What computes `a @ b + bias` in each way that cuBLASLt proposes; to it, each matrix is its own transpose."""
    handle, workspace = handle_and_workspace()
    description, preference = created("MatmulDesc", COMPUTE_32F, R_32F), created("MatmulPreference")
    put("MatmulPreference", preference, PREFERENCE_WORKSPACE, c_uint64(WORKSPACE))
    put("MatmulDesc", description, TRANSPOSE_A, c_int32(is_transposed(b)))
    put("MatmulDesc", description, TRANSPOSE_B, c_int32(is_transposed(a)))
    if bias is not None:
        put("MatmulDesc", description, EPILOGUE, c_uint32(BIAS))
        put("MatmulDesc", description, BIAS_POINTER, c_void_p(bias.data_ptr()))

    def layout(matrix: Tensor) -> c_void_p:
        rows = matrix.T if is_transposed(matrix) else matrix
        return created("MatrixLayout", R_16BF, rows.shape[1], rows.shape[0], rows.stride(0))

    B, A, D = (layout(matrix) for matrix in (b, a, out))
    proposals, n, one, zero = (Proposal * N_ALGORITHMS)(), c_int(), c_float(1), c_float(0)
    call("MatmulAlgoGetHeuristic", handle, description, B, A, D, D, preference, N_ALGORITHMS, proposals, byref(n))

    def by(proposal: Proposal) -> Product:
        def run(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> None:
            if bias is not None:
                put("MatmulDesc", description, BIAS_POINTER, c_void_p(bias.data_ptr()))
            inputs = byref(one), b.data_ptr(), B, a.data_ptr(), A, byref(zero), out.data_ptr(), D, out.data_ptr(), D
            after = workspace.data_ptr(), WORKSPACE, torch.cuda.current_stream().cuda_stream
            call("Matmul", handle, description, *inputs, byref(proposal), *after)

        return run

    return [by(proposal) for proposal in proposals[: n.value] if proposal.state == 0]


def fastest(a: Tensor, b: Tensor, bias: Tensor | None) -> Product:
    out = a.new_empty(a.shape[0], b.shape[1])
    runs = candidates(a, b, bias, out)
    times = [min(milliseconds(partial(run, a, b, bias, out), 10) for _ in range(2)) for run in runs]
    chosen = runs[times.index(min(times))]
    torchs = milliseconds(lambda: plain(a, b, bias), 10)
    chosen(a, b, bias, out)
    right = plain(a, b, bias).float()
    error = float(((out.float() - right).abs() / (right.abs() + right.square().mean().sqrt())).max())
    print(f"{tuple(a.shape)} x {tuple(b.shape)}: torch {torchs:.3f} ms, first {times[0]:.3f}, best {min(times):.3f}")
    if not error < LARGEST_ERROR:
        raise ValueError(f"the product is wrong by {error:.1%}")
    return chosen


def plain(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return a @ b if bias is None else torch.addmm(bias, a, b)


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """By the fastest algorithm, which is found when such a product is first met, before passes are recorded."""
    key = a.shape, a.stride(), b.shape, b.stride(), None if bias is None else bias.shape
    if key not in CHOSEN:
        CHOSEN[key] = fastest(a, b, bias)
    out = a.new_empty(a.shape[0], b.shape[1])
    CHOSEN[key](a, b, bias, out)
    return out


@torch.library.custom_op("excise::mm", mutates_args=())
def mm(a: Tensor, b: Tensor) -> Tensor:
    return product(a, b)


@torch.library.custom_op("excise::addmm", mutates_args=())
def addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return product(a, b, bias)


mm.register_fake(lambda a, b: a.new_empty(a.shape[0], b.shape[1]))
addmm.register_fake(lambda bias, a, b: a.new_empty(a.shape[0], b.shape[1]))


class OurProducts(CustomGraphPass):
    """Puts our products in the place of torch's in a compiled graph."""

    def __call__(self, graph: fx.Graph) -> None:
        ours = {torch.ops.aten.mm.default: torch.ops.excise.mm.default}
        ours[torch.ops.aten.addmm.default] = torch.ops.excise.addmm.default
        for node in graph.nodes:
            if node.target in ours and not node.kwargs and node.meta["val"].dtype == torch.bfloat16:
                node.target = ours[node.target]

    def uuid(self) -> bytes:
        return b"excise products"


def step_seconds(size: bench.Size, way: str, rounds: int) -> float:
    torch._dynamo.reset()
    torch._inductor.config.post_grad_custom_post_pass = OurProducts() if way == "algorithms" else None
    config = bench.BenchConfig(size=size, precision="bfloat16", rounds=rounds)
    train, device = TrainConfig(precision="bfloat16"), torch.device("cuda")
    routing, mix = RoutingConfig(rule="none", domains=("forget",)), bench.label_mix(config)
    kinds = {way: lambda: bench.stepper(config, train, device, routing, mix)}
    return statistics.median(bench.measured(kinds, rounds, device)[way].seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=["8m", "64m", "125m", "254m"], default="254m")
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=WAYS)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("steps are timed on a CUDA device, and there is none")
    size, rows = bench.SIZES[args.size]
    for way in args.ways:
        seconds = step_seconds(args.size, way, args.rounds)
        print(f"{way}: {1000 * seconds:.1f} ms, {rows * size.context / seconds:,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
