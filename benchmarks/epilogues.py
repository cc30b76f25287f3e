"""Whether GELU, bias and the bias gradient inside cuBLASLt's matrix products would shorten a training step.

    python benchmarks/epilogues.py [--size 254m 64m] [--rounds 20]

cuBLASLt can end a product with them (GELU_AUX_BIAS forward, DGELU_BGRAD back), which torch does not offer; so it is
called by ctypes, with the fastest of the algorithms that it proposes. Beside it, in turns, are timed what a compiled
block does now (a product, then inductor's kernels; back they add up the bias gradient too) and the bare product, which
is the bound. What fails is named in a line and left out.

Shapes: N rows, d d_model, m d_mlp.
"""

import argparse
import ctypes
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn.functional import linear
from torch.profiler import ProfilerActivity, profile

from excise.bench import SIZES
from excise.routing.fused import gelu

STEPS = {"254m": (225.3, 204.8), "64m": (73.5, 59.6)}
"""Milliseconds that a step of plain training takes, and those that are aimed at."""
TURN, SHORT_TURN = 25, 5
"""Milliseconds of one variant before it is another's turn; the short ones are for choosing an algorithm."""
WARM_UP_ROUNDS, CHOOSING_ROUNDS = 2, 3
N_ALGORITHMS, WORKSPACE = 8, 64 * 2**20
LARGEST_ERROR = 0.02
NOW, FUSED, BARE, BARE_LT = "now: torch and inductor", "the epilogue", "the bare product", "the same by cuBLASLt"
ALONE, APART = "DGELU, no bias gradient", "DGELU, then a sum of rows"

# As cublasLt.h, cublas_api.h and library_types.h have them, in CUDA 12 and 13.
COMPUTE_32F, R_32F, R_16BF, PREFERENCE_WORKSPACE = 68, 0, 14, 1
TRANSPOSE_A, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LEADING_DIMENSION = 3, 7, 8, 11, 12
DEFAULT, GELU_AUX_BIAS, DGELU, DGELU_BGRAD = 1, 164, 192, 208

Run = Callable[[], object]
Runs = dict[str, Run | None]
Outputs = Mapping[str, tuple[Tensor, Callable[[], Tensor]]]
"""What a product writes, and what makes what is to be there."""
T = TypeVar("T")
say = partial(print, flush=True)
KEPT: list[object] = []
"""Tensors of which cuBLASLt has the address only."""


class Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t, which begins with the algorithm."""

    _fields_ = (("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("rest", c_int32 * 5))


def attempt(what: str, work: Callable[[], T]) -> T | None:
    try:
        return work()
    except (RuntimeError, OSError, AttributeError) as error:  # which must not cost the other measurements
        say(f"{what} failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return None


@cache
def library() -> ctypes.CDLL:
    """cuBLASLt, as torch has loaded it, or else from beside torch."""
    beside = sorted(Path(torch.__file__).parents[1].glob("nvidia/**/libcublasLt.so.*"), reverse=True)
    for name in ("libcublasLt.so.13", *map(str, beside), "libcublasLt.so.12"):
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise OSError("there is no libcublasLt.so.13 or .12")


def call(function: str, *arguments: Any) -> None:
    # An integer of any width is 64 bits on its way to a function, but ctypes would cut an address to 32.
    status = getattr(library(), f"cublasLt{function}")(*(c_int64(x) if isinstance(x, int) else x for x in arguments))
    if status:
        raise RuntimeError(f"cublasLt{function} has status {status} (7: invalid value, 15: not supported)")


def created(kind: str, *arguments: int) -> c_void_p:
    made = c_void_p()
    call(f"{kind}Create", byref(made), *arguments)
    return made


def put(kind: str, into: c_void_p, attribute: int, value: Any) -> None:
    call(f"{kind}SetAttribute", into, attribute, byref(value), ctypes.sizeof(value))


def product(
    x: Tensor, W: Tensor, out: Tensor, epilogue: int = DEFAULT, bias: Tensor | None = None, aux: Tensor | None = None
) -> Run:
    """What writes `x @ W`, or `x @ W.T` where that fits, into `out`, with this epilogue.

    cuBLASLt goes down columns where torch goes along rows. So to it each matrix is its own transpose, whose leading
    dimension is its number of columns here, and `out` is W times x.
    """
    handle, preference = created(""), created("MatmulPreference")
    put("MatmulPreference", preference, PREFERENCE_WORKSPACE, c_uint64(WORKSPACE))
    description = created("MatmulDesc", COMPUTE_32F, R_32F)
    put("MatmulDesc", description, TRANSPOSE_A, c_int32(W.shape[1] == x.shape[1]))
    put("MatmulDesc", description, EPILOGUE, c_uint32(epilogue))
    if bias is not None:
        put("MatmulDesc", description, BIAS_POINTER, c_void_p(bias.data_ptr()))
    if aux is not None:
        put("MatmulDesc", description, AUX_POINTER, c_void_p(aux.data_ptr()))
        put("MatmulDesc", description, AUX_LEADING_DIMENSION, c_int64(aux.shape[1]))
    A, B, D = (created("MatrixLayout", R_16BF, t.shape[1], t.shape[0], t.shape[1]) for t in (W, x, out))
    proposals, n = (Proposal * N_ALGORITHMS)(), c_int()
    call("MatmulAlgoGetHeuristic", handle, description, A, B, D, D, preference, N_ALGORITHMS, proposals, byref(n))
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=x.device)
    KEPT.append((x, W, out, bias, aux, workspace))
    a, b, d, one, zero = W.data_ptr(), x.data_ptr(), out.data_ptr(), byref(c_float(1)), byref(c_float(0))
    before = handle, description, one, a, A, b, B, zero, d, D, d, D
    after = workspace.data_ptr(), WORKSPACE, torch.cuda.current_stream().cuda_stream
    usable = [proposal for proposal in proposals[: n.value] if proposal.state == 0]
    calls = [partial(call, "Matmul", *before, byref(proposal), *after) for proposal in usable]
    runs: dict[str, Run] = {f"algorithm {i}": run for i, run in enumerate(calls, 1)}
    times = in_turns(runs, CHOOSING_ROUNDS, SHORT_TURN)
    if not times:
        raise RuntimeError(f"none of {n.value} proposed algorithms runs")
    medians = {name: statistics.median(found) for name, found in times.items()}
    best = min(medians, key=medians.__getitem__)
    say(f"  {best} of {', '.join(f'{time:.3f}' for time in medians.values())} ms")
    return runs[best]


def marked(run: Run, n: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """The begin and the end of n runs."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(n):
        run()
    end.record()
    return start, end


def milliseconds(run: Run, n: int) -> float:
    """Of one of n runs, after two others."""
    marked(run, 2)
    start, end = marked(run, n)
    torch.cuda.synchronize()
    return start.elapsed_time(end) / n


def in_turns(runs: Mapping[str, Run], rounds: int, turn: float) -> dict[str, list[float]]:
    """Milliseconds of each that runs, in all rounds; they meet the same clock, as they take turns."""
    first = {name: attempt(f"  {name}", partial(milliseconds, run, 5)) for name, run in runs.items()}
    counts = {name: max(1, round(turn / time)) for name, time in first.items() if time}
    marks = [{name: marked(runs[name], n) for name, n in counts.items()} for _ in range(WARM_UP_ROUNDS + rounds)]
    torch.cuda.synchronize()
    ends = {name: [mark[name] for mark in marks[WARM_UP_ROUNDS:]] for name in counts}
    return {name: [start.elapsed_time(end) / counts[name] for start, end in ends[name]] for name in counts}


def checked(what: str, make: Callable[[], Run], outputs: Outputs) -> Run | None:
    """A product, once the largest errors of its outputs are printed, relative to a number plus the mean size."""

    def check(name: str, found: Tensor, expected: Callable[[], Tensor]) -> bool:
        found.fill_(math.nan)  # so that what is not written, or is added to what was there, is seen
        run()
        right = expected().float()
        error = float(((found.float() - right).abs() / (right.abs() + right.square().mean().sqrt())).max())
        say(f"  largest error of {name} {error:.2%}")
        if not error < LARGEST_ERROR:
            raise RuntimeError("too large")
        return True

    say(f"{what}:")
    run = attempt(what, make)
    checks = {f"  the check of {name}": partial(check, name, *of) for name, of in outputs.items()} if run else {}
    passed = [attempt(name, work) for name, work in checks.items()]
    return run if all(passed) else None


def gradient_and_sum(g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Of the input of `gelu` and of the bias, from that of its output, as the compiled backward pass has them."""
    slope = 2 * math.sqrt(2 / math.pi)
    s = torch.sigmoid(slope * (h + 0.044715 * h**3))
    dh = g * (s + h * s * (1 - s) * slope * (1 + 3 * 0.044715 * h**2))
    return dh, dh.sum(0)


def random(*shape: int, std: float = 1.0) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda") * std


def forward(N: int, d: int, m: int) -> Runs:
    x, W1, bias = random(N, d), random(m, d, std=d**-0.5), random(m)
    h, a, y = (x.new_empty(N, m) for _ in range(3))
    compiled = torch.compile(gelu, dynamic=False)

    def now() -> Tensor:
        return compiled(linear(x, W1, bias))

    outputs = {"h": (h, lambda: linear(x, W1, bias)), "a": (a, now)}
    return {
        NOW: now,
        FUSED: checked("GELU_AUX_BIAS", lambda: product(x, W1, a, GELU_AUX_BIAS, bias, h), outputs),
        BARE: lambda: linear(x, W1),
        BARE_LT: checked(BARE_LT, lambda: product(x, W1, y), {"y": (y, lambda: linear(x, W1))}),
    }


def backward(N: int, d: int, m: int) -> Runs:
    dy, W2, h = random(N, d), random(d, m, std=d**-0.5), random(N, m)
    dh, dh_alone, g, dbias = *(dy.new_empty(N, m) for _ in range(3)), dy.new_empty(m)
    compiled, compiled_sum = (torch.compile(f, dynamic=False) for f in (gradient_and_sum, lambda dh: dh.sum(0)))

    def now() -> tuple[Tensor, Tensor]:
        return compiled(dy @ W2, h)

    outputs = {"dh": (dh, lambda: now()[0]), "the bias gradient": (dbias, lambda: now()[1])}
    alone = checked("DGELU", lambda: product(dy, W2, dh_alone, DGELU, aux=h), {"dh": (dh_alone, lambda: now()[0])})
    return {
        NOW: now,
        FUSED: checked("DGELU_BGRAD", lambda: product(dy, W2, dh, DGELU_BGRAD, dbias, h), outputs),
        ALONE: alone,
        APART: alone and (lambda: (alone(), compiled_sum(dh_alone))),
        BARE: lambda: dy @ W2,
        BARE_LT: checked(BARE_LT, lambda: product(dy, W2, g), {"g": (g, lambda: dy @ W2)}),
    }


def kernels(name: str, run: Run) -> None:
    """Print their names and milliseconds: an epilogue may be a kernel of its own after all."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        milliseconds(run, 1)
    events = [event for event in profiler.key_averages() if event.device_type == DeviceType.CUDA]
    times = [f"{event.self_device_time_total / event.count / 1000:.3f} {event.key[:70]}" for event in events]
    say(f"{name}: {', '.join(times)}")


def summary(size: str, forward: Mapping[str, float], backward: Mapping[str, float]) -> None:
    """Print what would be saved; nan is what could not be measured."""
    n, (step, aim) = SIZES[size][0].n_layers, STEPS[size]
    f, b = (defaultdict(lambda: math.nan, times) for times in (forward, backward))
    saved, saved_back, saved_apart = f[NOW] - f[FUSED], b[NOW] - b[FUSED], b[NOW] - b[APART]
    say(f"\n{size}, {n} blocks, a step of {step} ms, aim {aim}; milliseconds saved")
    say("| | forward | backward | a block | a step | the step then |", f"|{' --- |' * 6}", sep="\n")
    for name, ahead, back in (
        ("GELU_AUX_BIAS, DGELU_BGRAD", saved, saved_back),
        (f"GELU_AUX_BIAS, {APART}", saved, saved_apart),
        ("what gains of these", max(0.0, saved), max(0.0, saved_back, saved_apart)),
        ("the bound: bare products", f[NOW] - min(f[BARE], f[BARE_LT]), b[NOW] - min(b[BARE], b[BARE_LT])),
    ):
        block = ahead + back
        say(f"| {name} | {ahead:.3f} | {back:.3f} | {block:.3f} | {n * block:.1f} | {step - n * block:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=STEPS, nargs="+", default=list(STEPS))
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("cuBLASLt's epilogues are timed on a CUDA device, and there is none")
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16")
    attempt("finding cuBLASLt", lambda: say(f"cuBLASLt {library().cublasLtGetVersion()}"))
    every: dict[str, Run] = {}
    for size in args.size:
        config, B = SIZES[size]
        medians: list[dict[str, float]] = []
        for make in (forward, backward):
            title = f"{make.__name__} at {size}"
            say(f"\n{title}: {B * config.context:,} rows, {config.d_model} and {config.d_mlp}")
            made: Runs = attempt(title, partial(make, B * config.context, config.d_model, config.d_mlp)) or {}
            runs = {name: run for name, run in made.items() if run}
            found = attempt(title, partial(in_turns, runs, args.rounds, TURN)) or {}
            for name, times in found.items():
                say(f"{statistics.median(times):9.3f} ms ({min(times):.3f} to {max(times):.3f})  {name}")
            medians.append({name: statistics.median(times) for name, times in found.items()})
            every |= {f"{title}, {name}": runs[name] for name in (NOW, FUSED, ALONE) if name in runs}
        summary(size, *medians)
    say("\nKernels, ms")
    for name, run in every.items():
        attempt(name, partial(kernels, name, run))


if __name__ == "__main__":
    main()
