"""Where the time of a training step goes: milliseconds by kind of work, and what takes longest.

    python benchmarks/profile_step.py [--size 64m] [--variant mixed]

The step is that of `excise bench`: on a GPU compiled and recorded, and its kernels are counted; on a CPU operators are,
each without those that it calls. Wall time is that of steps without the profiler.
"""
# Not profile.py: for scripts beside it that would hide the standard library's, which torch.compile imports.

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from excise.bench import MIXED, PLAIN, SIZES, BenchConfig, timed, variants
from excise.train.loop import pick_device
from excise.train.run import TrainConfig

VARIANTS = {"plain": PLAIN, "mixed": MIXED}
WARM_UP_STEPS, N_STEPS = 3, 5
N_LONGEST, WIDTH = 15, 100

MATRIX, ATTENTION, HEAD = "matrix products", "attention", "softmax and loss of the head"
ELEMENTWISE, SUMS = "element-wise work and norms", "sums, embeddings, optimizer, copies"
REST = "everything else"
GROUPS = (MATRIX, ATTENTION, HEAD, ELEMENTWISE, SUMS, REST)
PATTERNS = (
    (ATTENTION, r"^_(forward|query|key)_kernel|scaled_dot_product|flash|fmha"),
    (HEAD, r"^_in_place|^_weigh|^_narrow_|softmax|_HeadLosses$|^aten::(gather|scatter_add|log|clamp_min|neg)_?$"),
    (MATRIX, r"gemm|gemv|cutlass|cublas|nvjet|xmma|splitk|^aten::(mm|bmm|addmm|linear|matmul)$"),
    (SUMS, r"^triton_poi_fused(_+(to_copy|clone|cat))+_\d+$"),
    (ELEMENTWISE, r"layer_?norm|masked_fill|^_(norm|units)_kernel|^triton_(?!.*_sum)"),
    (SUMS, r"sum|reduce|embedding|index|gather|scatter|sort|adam|multi_tensor|foreach|cat(array|$)"),
    (SUMS, r"copy|clone|memcpy|memset|fill|zero"),
    (ELEMENTWISE, r"elementwise|^aten::(add|sub|mul|div|pow|gelu|gelu_backward|where|eq|ne|ge|lt|bitwise_and)_?$"),
)
"""Of names of kernels and operators; the first that is found counts."""


@dataclass(frozen=True)
class Work:
    """A kernel or an operator, in a step."""

    name: str
    milliseconds: float
    calls: float

    @property
    def group(self) -> str:
        return next((group for group, pattern in PATTERNS if re.search(pattern, self.name, re.IGNORECASE)), REST)


def profiled(step: Callable[[], object], device: torch.device) -> list[Work]:
    """All work of a step on the device, the longest first."""
    on_gpu = device.type == "cuda"
    kind, activity = (DeviceType.CUDA, ProfilerActivity.CUDA) if on_gpu else (DeviceType.CPU, ProfilerActivity.CPU)
    with profile(activities=[activity]) as profiler:
        timed(step, device, N_STEPS)
    found = []
    for event in profiler.key_averages():
        if event.device_type == kind:
            microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            found.append(Work(event.key, microseconds / 1000 / N_STEPS, event.count / N_STEPS))
    return sorted(found, key=lambda work: -work.milliseconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--variant", choices=VARIANTS, default="plain")
    args = parser.parse_args()
    train = TrainConfig()
    device = pick_device(train.device)
    step = variants(BenchConfig(size=args.size), train, device)[VARIANTS[args.variant]]().step
    timed(step, device, WARM_UP_STEPS)
    wall, works = 1000 * timed(step, device, N_STEPS), profiled(step, device)
    total = sum(work.milliseconds for work in works)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{args.size}, {VARIANTS[args.variant]}, {name}, torch {torch.__version__}")
    print(
        f"{wall:9.2f} ms a step\n{total:9.2f} ms in {sum(work.calls for work in works):,.0f} calls, profiled; of these"
    )
    for group in GROUPS:
        taken = sum(work.milliseconds for work in works if work.group == group)
        print(f"{taken:9.2f} {taken / total:6.1%}  {group}")
    print("\n       ms  calls  the longest")
    for work in works[:N_LONGEST]:
        print(f"{work.milliseconds:9.2f} {work.calls:6.1f}  {work.name[:WIDTH]} ({work.group})")


if __name__ == "__main__":
    main()
