"""Compile every kernel for an H100 or H200, on any machine, and print its name."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from excise.model import attention_kernels
from excise.routing import head_kernels

TYPES = {
    **dict.fromkeys(("qkv", "out", "dout", "dqkv", "logits", "hidden", "head", "bias", "gradients", "added"), "*bf16"),
    **dict.fromkeys(("lse", "lses", "deltas", "losses"), "*fp32"),
    **dict.fromkeys(("firsts", "lasts", "columns"), "*i32"),
    "seen": "*u8",
    "targets": "*i64",
    **dict.fromkeys(("T", "V", "W"), "i32"),
}


def compile_kernel(kernel, types, options, **constants):
    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constants)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["cubin"]
    print(kernel.__name__)


def compile_attention(head_size):
    sizes = {"H": 32, "K": head_size, "P": attention_kernels.padded(head_size)}
    for name in ("forward", "query", "key"):
        block = getattr(attention_kernels, f"{name}_tile")(head_size)
        options = {name: block.pop(name) for name in ("num_warps", "num_stages")}
        compile_kernel(getattr(attention_kernels, f"_{name}_kernel"), TYPES, options, **sizes, **block)


if __name__ == "__main__":
    compile_attention(4)
    compile_attention(32)
    compile_kernel(head_kernels._in_place, TYPES, {"num_warps": 8}, TILE=4096)
    sizes, types = {"D": 128, "P": 128, "ROWS": 128}, {**TYPES, "N": "i32"}
    plain, gated = {"G": 0, "C": 0}, {"G": 2200, "C": 2}
    for bias, gates in (("*bf16", plain), ("*fp32", plain), ("*bf16", gated)):  # training casts it, evaluation does not
        options = {"num_warps": 8, "num_stages": 2}
        compile_kernel(head_kernels._narrow_losses, {**types, "bias": bias}, options, **sizes, **gates, TILE=128)
    for gates in (plain, gated):
        options = {"num_warps": 4, "num_stages": 4}
        compile_kernel(head_kernels._narrow_gradients, types, options, **sizes, **gates, TILE=64, TILES=16)
