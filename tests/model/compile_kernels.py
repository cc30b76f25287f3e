"""Compile every kernel for an H100 or H200, on any machine, and print its name."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from excise.model import attention_kernels
from excise.routing import fused_kernels, head_kernels

TYPES = {
    **dict.fromkeys(("qkv", "out", "dout", "dqkv", "logits", "hidden", "weight", "bias", "added"), "*bf16"),
    **dict.fromkeys(
        ("lse", "lses", "deltas", "losses", "divisors", "inverses", "weights", "gradient", "dweight", "dbias"), "*fp32"
    ),
    **dict.fromkeys(("firsts", "lasts", "bits", "seen"), "*i32"),
    "targets": "*i64",
    "unseen": "*u8",
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
        tile = getattr(attention_kernels, f"{name}_tile")(head_size)
        kernel, hides = getattr(attention_kernels, f"_{name}_kernel"), {"HEADS": (30, 31, 31, 32)}
        compile_kernel(kernel, TYPES, options_of(tile), **sizes, **tile, **(hides if name == "forward" else {}))


def options_of(tile):
    """What is no constant of a kernel, taken out of its tile."""
    return {name: tile.pop(name) for name in ("num_warps", "num_stages") if name in tile}


if __name__ == "__main__":
    for head_size in (4, 16, 32):
        compile_attention(head_size)
    compile_kernel(head_kernels._in_place, TYPES, {"num_warps": 8}, TILE=8192)
    strides = dict.fromkeys(("N", "D", "step", "weight_step", "out_step"), "i32")
    compile_kernel(head_kernels._weigh, {**TYPES, **strides, "rows": "*bf16"}, {"num_warps": 4}, ROWS=4, COLUMNS=512)
    types = {**TYPES, **dict.fromkeys(("N", "first", "end", "n_rows"), "i32"), "targets": "*i32"}
    sizes = {"D": 128, "P": 128}
    plain, gated = {"G": 0, "EVEN": True}, {"G": 2200, "EVEN": False}
    evaluated = {**types, "bias": "*fp32", "targets": "*i64"}  # training casts both, evaluation does not
    for kinds, gates, gradient in ((types, plain, True), (types, gated, True), (evaluated, plain, False)):
        tile = head_kernels.rows_tile(gradient)
        compile_kernel(head_kernels._narrow_rows, kinds, options_of(tile), **sizes, **gates, **tile, GRADIENT=gradient)
    for gates in (plain, gated):
        tile = head_kernels.tokens_tile()
        compile_kernel(head_kernels._narrow_tokens, types, options_of(tile), **sizes, **gates, **tile)
    masks = dict.fromkeys(("masks", "still_norm", "still_bias"), "*u8")
    halves = dict.fromkeys(("dnormed", "dadded", "dout", "x"), "*bf16")
    types = {
        **types,
        **masks,
        **dict.fromkeys(("dsum", "total", "mean", "rstd", "gain", "bias", "sums"), "*fp32"),
        **halves,
    }
    for D, masked, stream in ((512, False, "*fp32"), (768, True, "*fp32"), (1024, False, "*bf16")):
        tile = fused_kernels.norm_tile(D)
        sizes = {"NORM_MASK": masked, "BIAS_MASK": masked, "D": D, "P": triton.next_power_of_2(D)}
        kinds = {**types, **dict.fromkeys(("dx", "dsum", "total"), stream)}
        compile_kernel(fused_kernels._norm_kernel, kinds, options_of(tile), HALF=stream == "*bf16", **sizes, **tile)
    for hidden, frozen in (((), ()), ((0, 0, 64), (1, 64, 2048))):
        tile, sizes = fused_kernels.units_tile(2048), {"STOPPED": hidden, "FROZEN": frozen, "U": 2048}
        compile_kernel(fused_kernels._units_kernel, {**types, "dx": "*bf16"}, options_of(tile), **sizes, **tile)
