"""Compile every kernel to machine code for an H100 or H200, in every form the library launches. Needs no GPU.

Run by test_compiles.py in a process of its own: where the interpreter is switched on, nothing can be compiled.
"""

import itertools

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from groupwise.advantages.kernels import columns, rows, scan, statistics, whitening
from groupwise.policy import fused_head
from groupwise.rollout.kernels import attention, sampling
from groupwise.update.kernels import add_up, merge

HOPPER = GPUTarget("cuda", 90, 32)
GROUP = {"order": "*i64", "starts": "*i64", "sizes": "*i64"}
STRIDES = {"num_tokens": "i32", "reward_stride": "i32", "value_stride": "i32", "mask_stride": "i32"}


def machine_code(kernel, pointers, constants, num_warps, has_exp=False):
    names = kernel.arg_names
    signature = {name: pointers.get(name, "constexpr") for name in names}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()})
    options = {"num_warps": num_warps, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=HOPPER, options=options)
    # The exponential is a polynomial, fused wherever it runs.
    assert has_exp or "fma.rn.f64" not in compiled.asm["ptx"], f"{kernel} would round differently from the torch form"
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
        yield statistics._moments, pointers, size, statistics.warps(width)
        pointers = dict.fromkeys(("scores", "advantages", "eps"), "*fp64") | GROUP
        flags = {"DDOF": 1, "SCALED": True, "RAW_SINGLETONS": True}
        yield statistics._relative, pointers, size | flags, statistics.warps(width)
        yield statistics._lead, pointers, size | {"SCALED": True}, statistics.warps(width)


def batch_kernels():
    names = ("values", "whitened", "num_tokens", "variance_eps")
    for width, lengths in itertools.product((2, 1024), ("*i64", "*fp64", None)):
        pointers = dict.fromkeys(names, "*fp64") | {"lengths": lengths or "*fp64", "size": "i32"}
        size = {"WIDTH": width, "LEVELS": width.bit_length() - 1, "HAS_LENGTHS": lengths is not None}
        yield whitening._whiten, pointers, size, statistics.warps(width)


def baseline_kernels():
    names = ("to_go", "energy", "lengths", "poison")
    strides = dict.fromkeys(
        ("reward_stride", "mask_stride", "log_prob_stride", "square_stride", "weight_stride"), "i32"
    )
    for dtype, mask in (("*fp32", "*i64"), ("*bf16", "*u8")):
        for failed, rho in itertools.product((True, False), repeat=2):
            pointers = dict.fromkeys(("rewards", "log_probs", "squares", "weights", "finished"), dtype)
            pointers |= (
                dict.fromkeys(names, "*fp64") | {"mask": mask, "takes_part": "*u8", "num_tokens": "i32"} | strides
            )
            flags = {"HAS_FAILED": failed, "HAS_RHO": rho, "BLOCK": columns.WALK_BLOCK}
            yield columns._walk_row, pointers, flags, columns.WALK_WARPS, True
        for tail in (True, False):
            pointers = dict.fromkeys((*names, "epsilon"), "*fp64") | GROUP | {"advantages": dtype, "num_tokens": "i32"}
            flags = {"ZERO_TAIL": tail, "BLOCK": columns.JUDGE_BLOCK}
            yield columns._judge_columns, pointers, flags, columns.JUDGE_WARPS


def scan_kernels():
    for dtype, mask in (("*fp32", "*i64"), ("*bf16", "*u8")):
        for has_values, has_baseline, plain in itertools.product((True, False), repeat=3):
            pointers = dict.fromkeys(("rewards", "values", "baselines", "returns"), dtype)
            pointers |= {"mask": mask, "advantages": "*fp64", "constants": "*fp64", **STRIDES}
            flags = {"HAS_VALUES": has_values, "HAS_BASELINE": has_baseline, "PLAIN_SUM": plain}
            yield scan._scan_row, pointers, flags | {"BLOCK": scan.BLOCK}, scan.WARPS


def decoding_kernels():
    """Of bfloat16 models; their exponentials are fused wherever they run."""
    states = dict.fromkeys(("query", "new_key", "new_value"), "*bf16") | {"addresses": "*i64", "scale": "fp32"}
    tables = dict.fromkeys(("slot_start", "slot_length", "members", "count", "live"), "*i32")
    for shared, tile, width in ((1, 16, 64), (2, 16, 128), (8, 32, 128)):
        sizes = {"CHUNKS": 1, "PROMPT_SPLITS": 4, "OWN_SPLITS": 1, "KV_HEADS": 8, "SHARED": shared, "TILE": tile}
        sizes |= {"WIDTH": width, "PADDED": width, "BLOCK": attention.BLOCK, "PRECISION": "tf32"}
        flags = sizes | {"TYPE": triton.language.bfloat16}
        pointers = states | tables | dict.fromkeys(("sums", "marks"), "*fp32")
        numbers = set(attention._attend_partly.arg_names) - pointers.keys() - flags.keys()
        yield attention._attend_partly, pointers | dict.fromkeys(numbers, "i32"), flags, attention.WARPS, True
    merged = {"sums": "*fp32", "marks": "*fp32", "attended": "*bf16"}
    yield attention._merge, merged, {"SPLITS": 5, "SPLITS_PADDED": 16, "WIDTH": 128, "PADDED": 128}, 1, True
    floats = dict.fromkeys(("temperature", "tops", "sums"), "*fp32") | {"logits": "*bf16"}
    live = dict.fromkeys(("live", "counts", "tokens", "limit"), "*i32")
    sized = {"vocab_size": "i32", "stride": "i32", "num_blocks": "i32", "capacity": "i32"}
    block = {"BLOCK": sampling.LARGEST_BLOCK}
    yield sampling._sum_blocks, floats | live | sized, block, 8, True
    rest = dict.fromkeys(("prompt_length", "tokens_in", "positions"), "*i64") | {"is_eos": "*u8"}
    rest |= dict.fromkeys(("numbers", "log_probs"), "*fp64")
    yield sampling._choose, floats | live | sized | rest, block | {"BLOCKS": 64}, 8, True


def update_kernels():
    parts = dict.fromkeys(("first", "second", "attended"), "*bf16")
    parts |= dict.fromkeys(("first_sums", "second_sums", "sums"), "*fp32")
    parts |= dict.fromkeys(("num_tokens", "token_stride", "head_stride", "sum_stride"), "i32")
    flags = {"HEADS": 16, "WIDTH": 128, "PADDED": 128, "TOKENS": merge._TOKENS}
    yield merge._merge_parts, parts, flags, merge._WARPS, True
    tables = dict.fromkeys(("addresses", "pieces", "sizes"), "*i64") | {"count": "i32"}
    for is_first in (True, False):
        yield add_up._add_up, tables, {"IS_FIRST": is_first, "BLOCK": add_up._BLOCK}, add_up._WARPS, True
    given = {"logits": "*bf16", "tokens": "*i64", "vocab_size": "i32", "sharpness": "fp32"}
    found = dict.fromkeys(("log_probs", "normalisers", "entropies", "grad_log_probs", "grad_entropies"), "*fp32")
    block = {"BLOCK": fused_head._BLOCK}
    yield fused_head._statistics, given | found, block, fused_head._WARPS, True
    for has_entropy in (True, False):
        yield fused_head._to_gradient, given | found, block | {"HAS_ENTROPY": has_entropy}, fused_head._WARPS, True


if __name__ == "__main__":
    advantages = (row_kernels(), group_kernels(), batch_kernels(), scan_kernels(), baseline_kernels())
    forms = (*advantages, decoding_kernels(), update_kernels())
    compiled = [machine_code(*form) for form in itertools.chain(*forms)]
    print(f"{len(compiled)} forms compiled")
