"""Compile every kernel for an H100 or H200, on any machine, and print its name."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from excise.model import attention_kernels
from excise.routing import head_kernels

TYPES = {
    **dict.fromkeys(("qkv", "out", "dout", "dqkv", "logits", "hidden", "head", "bias", "gradients"), "*bf16"),
    **dict.fromkeys(("lse", "lses", "deltas", "losses"), "*fp32"),
    **dict.fromkeys(("firsts", "lasts"), "*i32"),
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
    rows, types = {"D": 128, "P": 128, "ROWS": 128}, {**TYPES, "N": "i32"}
    for bias in ("*bf16", "*fp32"):  # training casts it, evaluation does not
        options = {"num_warps": 8, "num_stages": 2}
        compile_kernel(head_kernels._narrow_losses, {**types, "bias": bias}, options, **rows, TILE=128)
    compile_kernel(head_kernels._narrow_gradients, types, {"num_warps": 4, "num_stages": 4}, **rows, TILE=64, TILES=16)
