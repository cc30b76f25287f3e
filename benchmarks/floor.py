"""The least that the kernels of a plain training step can take: what memory, matrix units and the issue of instructions
allow, each kind of work after the other.

    python benchmarks/floor.py [--size 64m 254m] [--tflops 801] [--terabytes 4.2] [--gigahertz 1.85]

On a GPU the first two are measured where they are not given. Attention is counted in the machine code of its kernels (sm_90), which needs no GPU:
instructions of each loop, times the tiles that it meets, at four instructions a clock and processor.

Shapes: N tokens in a step, d d_model, B rows, T positions, H heads, K head size.
"""

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from excise.bench import SIZES, matrix_peak
from excise.model import attention_kernels
from excise.model.gpt import GPT, GPTConfig, n_parameters
from excise.routing import head_kernels

PROCESSORS, INSTRUCTIONS_PER_CLOCK = 132, 4
H200_TFLOPS, H200_TERABYTES = 801, 4.2
"""The most that was measured."""
NARROW_PASSES = 28
"""Reads and writes of N x d numbers in half precision, one of the stream that is added to counting as two, in a block:
two additions with a norm after them (read and write stream and input: 12), and twice their backward pass (gradient, saved
stream and stream of gradients read, this and a half-precision copy written: 16)."""
WIDE_PASSES = 5
"""Of N x 4 d numbers: GELU reads and writes one, its backward pass reads two and writes one."""
OPTIMIZER_BYTES = 28
"""For each parameter: it, its gradient and two moments are read, and all but the gradient written."""
SMALLEST_LOOP = 20
"""Instructions; what jumps back less far is no loop over tiles."""
TYPES = {
    **dict.fromkeys(("qkv", "out", "dout", "dqkv"), "*bf16"),
    **dict.fromkeys(("lse", "deltas"), "*fp32"),
    **dict.fromkeys(("firsts", "lasts"), "*i32"),
    "unseen": "*u8",
    "T": "i32",
}


def machine_code(name: str, K: int, H: int) -> list[str]:
    """The instructions of one of the attention kernels, and labels."""
    kernel: Any = getattr(attention_kernels, f"_{name}_kernel")
    options = getattr(attention_kernels, f"{name}_tile")(K)
    constants = {"H": H, "K": K, "P": attention_kernels.padded(K), "M": options["M"], "N": options["N"]}
    if name == "forward":
        constants["HEADS"] = ()  # none is hidden
    signature = {name: "constexpr" if name in constants else TYPES[name] for name in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name not in constants}
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, aligned),
        target=GPUTarget("cuda", 90, 32),
        options={name: options[name] for name in ("num_warps", "num_stages")},
    )
    disassembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([disassembler, "-c", file.name], capture_output=True, text=True, check=True).stdout
    found = (re.match(r"(\.L_x_\d+):|.*/\*[0-9a-f]{4,}\*/\s+(.*?);", line) for line in text.splitlines())
    return [match[1] or match[2] for match in found if match]


def loops(code: list[str]) -> tuple[list[int], int]:
    """Instructions of each loop, and of all else."""
    label, sizes = re.compile(r"\.L_x_\d+$"), []
    places = {line: i for i, line in enumerate(code) if label.match(line)}
    for i, line in enumerate(code):
        jump = re.search(r"BRA.*`\((\.L_x_\d+)\)", line)
        body = code[places[jump[1]] : i + 1] if jump and jump[1] in places else []
        size = sum(not label.match(one) for one in body)
        if size > SMALLEST_LOOP:
            sizes.append(size)
    return sizes, sum(not label.match(line) for line in code) - sum(sizes)


def tiles(name: str, T: int, reach: int, M: int, N: int) -> Iterator[tuple[int, int, int]]:
    """For each program, tiles that it meets with a mask, without one, and with one again, as the kernels have it."""
    first, last = [max(0, t - reach + 1) for t in range(T)], [min(T - 1, t + reach - 1) for t in range(T)]
    for start in range(0, T, N if name == "key" else M):
        if name == "key":
            step, begin, end = M, start // M * M, last[min(start + N, T) - 1] + 1
            plain = -(-(start + N - 1) // M) * M
            bounds = begin, min(plain, end), max(plain, (last[start] + 1) // M * M), end
        else:
            step, begin, end = N, first[start] // N * N, min(start + M, T)
            plain_end = max(begin, start // N * N)
            bounds = begin, min(-(-first[end - 1] // N) * N, plain_end), plain_end, end
        a, b, c = (max(0, -(-(to - since) // step)) for since, to in pairwise(bounds))
        yield a, b, c


def attention_instructions(name: str, config: GPTConfig, B: int, reach: int) -> int:
    """Instructions that all warps of one kernel issue in a block."""
    K, H, tile = config.head_size, config.n_heads, getattr(attention_kernels, f"{name}_tile")(config.head_size)
    in_loops, once = loops(machine_code(name, K, H))
    programs = tiles(name, config.context, reach, tile["M"], tile["N"])
    per_row = sum(once + sum(n * size for n, size in zip(met, in_loops, strict=True)) for met in programs)
    return B * H * tile["num_warps"] * per_row


def attention_seconds(config: GPTConfig, B: int, gigahertz: float) -> float:
    """Of all blocks, of which every second is within the window."""
    per_second = PROCESSORS * INSTRUCTIONS_PER_CLOCK * gigahertz * 1e9
    reaches = [config.window if i % 2 else config.context for i in range(config.n_layers)]
    count = {
        reach: sum(attention_instructions(name, config, B, reach) for name in ("forward", "query", "key"))
        for reach in set(reaches)
    }
    return sum(count[reach] for reach in reaches) / per_second


def copy_speed(device: torch.device) -> float:
    """Bytes a second that a large copy reads and writes, the best of a few."""
    x, times = torch.empty(2**30, dtype=torch.uint8, device=device), []
    y = torch.empty_like(x)
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        y.copy_(x)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return 2 * len(x) / min(times)


def speeds(tflops: float | None, terabytes: float | None) -> tuple[float, float]:
    """FLOPs and bytes a second: as given, or else as measured here, or else those of an H200."""
    if torch.cuda.is_available():
        device = torch.device("cuda")
        tflops = tflops or matrix_peak(device, torch.bfloat16) / 1e12
        terabytes = terabytes or copy_speed(device) / 1e12
    return 1e12 * (tflops or H200_TFLOPS), 1e12 * (terabytes or H200_TERABYTES)


def floor(config: GPTConfig, B: int, flops: float, memory: float, gigahertz: float) -> dict[str, float]:
    """Seconds of a step by kind of work; `memory` is bytes a second."""
    n_tokens, parameters = B * config.context, n_parameters(GPT(config))
    narrow = 2 * n_tokens * config.d_model
    wide = 2 * n_tokens * config.d_mlp
    n_logits = n_tokens * config.vocabulary_size
    is_narrow = head_kernels.is_narrow(config.d_model, torch.bfloat16)  # then they are computed twice and written never
    return {
        "matrix products": 6 * parameters * n_tokens / flops,
        "element-wise work": config.n_layers * (NARROW_PASSES * narrow + WIDE_PASSES * wide) / memory,
        "attention": attention_seconds(config, B, gigahertz),
        "softmax and loss": 2 * n_logits * config.d_model / flops if is_narrow else 4 * n_logits / memory,
        "optimizer": OPTIMIZER_BYTES * parameters / memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, nargs="+", default=["64m", "254m"])
    parser.add_argument("--tflops", type=float)
    parser.add_argument("--terabytes", type=float)
    parser.add_argument("--gigahertz", type=float, default=1.85)
    args = parser.parse_args()
    flops, memory = speeds(args.tflops, args.terabytes)
    print(f"{flops / 1e12:.0f} TFLOP/s, {memory / 1e12:.2f} TB/s, {args.gigahertz:g} GHz")
    for size in args.size:
        found = floor(*SIZES[size], flops, memory, args.gigahertz)
        print(f"\n{1000 * sum(found.values()):8.1f} ms a step of {size}")
        for kind, seconds in found.items():
            print(f"{1000 * seconds:8.1f}  {kind}")


if __name__ == "__main__":
    main()
