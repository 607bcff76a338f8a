"""Compile every kernel to machine code for an H100 or H200, in every form the library launches. Needs no GPU.

Run by test_compiles.py in a process of its own: where the interpreter is switched on, nothing can be compiled.
"""

import itertools

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from groupwise.advantages.kernels import rows, scan, statistics

HOPPER = GPUTarget("cuda", 90, 32)
GROUP = {"order": "*i64", "starts": "*i64", "sizes": "*i64"}
STRIDES = {"num_tokens": "i32", "reward_stride": "i32", "value_stride": "i32", "mask_stride": "i32"}


def machine_code(kernel, pointers, constants, num_warps):
    names = kernel.arg_names
    signature = {name: pointers.get(name, "constexpr") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=HOPPER, options=options)
    assert "fma.rn.f64" not in compiled.asm["ptx"], f"{kernel} would round differently from the torch form"
    return compiled.asm["cubin"]


def row_kernels():
    row = {"num_tokens": "i32", "stride": "i32"}
    for dtype in ("*fp64", "*fp32", "*bf16", "*fp16", "*i64", "*u8"):
        constants = {"INTEGER": dtype in ("*i64", "*u8"), "BLOCK": rows.SUM_BLOCK}
        yield rows._sum_rows, {"rewards": dtype, "scores": "*fp64", **row}, constants, rows.SUM_WARPS
    for mask, result in itertools.product(("*i64", "*u8", "*fp32"), ("*fp64", "*fp32", "*bf16", "*fp16")):
        pointers = {"values": "*fp64", "mask": mask, "result": result, **row}
        yield rows._spread_rows, pointers, {"BLOCK": rows.SPREAD_BLOCK}, rows.SPREAD_WARPS


def group_kernels():
    for width in (2, 8, 64, 1024):
        size = {"WIDTH": width, "LEVELS": width.bit_length() - 1}
        pointers = dict.fromkeys(("values", "lows", "rises", "squares"), "*fp64") | GROUP
        yield statistics._moments, pointers, size, statistics._warps(width)
        pointers = dict.fromkeys(("scores", "advantages", "eps"), "*fp64") | GROUP
        flags = {"DDOF": 1, "SCALED": True, "RAW_SINGLETONS": True}
        yield statistics._relative, pointers, size | flags, statistics._warps(width)


def scan_kernels():
    for dtype, mask in (("*fp32", "*i64"), ("*bf16", "*u8")):
        for has_values, has_baseline, plain in itertools.product((True, False), repeat=3):
            pointers = dict.fromkeys(("rewards", "values", "baselines", "returns"), dtype)
            pointers |= {"mask": mask, "advantages": "*fp64", "constants": "*fp64", **STRIDES}
            flags = {"HAS_VALUES": has_values, "HAS_BASELINE": has_baseline, "PLAIN_SUM": plain, "BLOCK": scan.BLOCK}
            yield scan._scan_row, pointers, flags, scan.WARPS


if __name__ == "__main__":
    compiled = [machine_code(*form) for form in itertools.chain(row_kernels(), group_kernels(), scan_kernels())]
    print(f"{len(compiled)} forms compiled")
