"""Where the time of our GRPO step goes on one NVIDIA GPU: kernel by kernel, in decoding, in prompts and in the update.

    python benchmarks/profile_gpu.py
    python benchmarks/profile_gpu.py --prompt-tokens 4096

The step is that of `step_gpu.py`. It is taken as it is, warm, and its rollout and update are timed; then parts of it
are watched by torch's profiler: some steps of decoding halfway through the answers, the prompts' own pass, and one
whole update. A kind of work is a row of `KINDS`: the first whose pattern is found in a kernel's name. `gap` is what the
clock counts and no kernel does: the GPU waits.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from floor import Work
from random_model import SHAPES
from report import RESULTS, publish
from step_sides import Order, OurSide, clock_of

from groupwise.parts import sampling_of
from groupwise.types import Group

WARM_STEPS, TIMED_STEPS = 2, 3
DECODING_STEPS = 16
SHOWN_KERNELS = 14
KINDS = (
    ("attention of decoding", r"_attend_partly|_merge$"),
    ("attention", r"flash|fmha|sdpa|cudnn|_merge_parts"),
    ("sampling", r"_sum_blocks|_choose"),
    ("softmax of the head", r"_statistics|_to_gradient"),
    ("optimizer", r"_add_up|multi_tensor|[Aa]dam|foreach|lpnorm"),
    ("matrix products", r"gemm|nvjet|cutlass|cublas|splitK|dot_kernel|reduce_1Block"),
    ("fused operations of the layers", r"triton_"),
    ("copies", r"[Mm]emcpy|[Mm]emset|copy|Cat|fill"),
    ("else", r""),
)


def main() -> None:
    arguments = read_arguments()
    tables: dict[str, list[dict[str, Any]]] = {}
    for width in arguments.prompt_tokens:
        work = Work(arguments.prompts, arguments.n, width, arguments.answer_tokens)
        order = Order(SHAPES[arguments.shape], "cuda", work, 0, arguments.micro_batch_tokens)
        tables |= {f"{name}, prompts of {width}": rows for name, rows in profile(order).items()}
        torch.cuda.empty_cache()
    publish(
        "profile-gpu",
        f"Where a GRPO step goes: {arguments.prompts} prompts x {arguments.n} answers of {arguments.answer_tokens}",
        tables,
        folder=arguments.out,
        date=arguments.date,
        notes="\n\n".join(__doc__.split("\n\n")[2:]).strip(),
    )


def profile(order: Order) -> dict[str, list[dict[str, Any]]]:
    side, clock = OurSide(order), clock_of(order.device)
    seconds: dict[str, list[float]] = defaultdict(list)
    groups: list[Group] = []
    advantages: Any = None
    for step in range(WARM_STEPS + TIMED_STEPS):
        marks = [clock()]
        groups = side.reward(side.rollout(step))
        marks.append(clock())
        advantages = side.judge(groups).to_learn
        side.updater.step(groups, advantages)
        seconds["rollout"].append(marks[1] - marks[0])
        seconds["update"].append(clock() - marks[1])
    rollout, update = (statistics.median(seconds[phase][WARM_STEPS:]) for phase in ("rollout", "update"))
    in_step, step_ms = decoding_kernels(side)
    one_token = replace(sampling_of(side.config, 1), max_tokens=1)
    in_prompts = kernels(lambda: side.engine.generate([group.prompt for group in groups], 1, one_token))
    in_update = kernels(lambda: side.updater.step(groups, advantages))
    print(f"prompt {order.work.prompt_tokens}: rollout {rollout:.3f} s, update {update:.3f} s", flush=True)
    phases = [
        {"phase": "rollout", "seconds": rollout},
        {"phase": "of that, steps of decoding", "seconds": step_ms * order.work.answer_tokens / 1e3},
        {"phase": "prompts, one token each", "seconds": sum(ms for ms, _ in in_prompts.values()) / 1e3},
        {"phase": "update", "seconds": update},
    ]
    return {
        "Phases": phases,
        "One step of decoding": by_kind(in_step, step_ms, DECODING_STEPS),
        "Its kernels": by_name(in_step, DECODING_STEPS),
        "The update": by_kind(in_update, update * 1e3),
        "The update's kernels": by_name(in_update),
        "The prompts' kernels": by_name(in_prompts),
    }


def kernels(work: Callable[[], Any]) -> dict[str, tuple[float, int]]:
    """Milliseconds and calls of every kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as watched:
        work()
        torch.cuda.synchronize()
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in watched.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.name] += event.device_time_total / 1e3
            calls[event.name] += 1
    return {name: (ms, calls[name]) for name, ms in spent.most_common()}


def decoding_kernels(side: OurSide) -> tuple[dict[str, tuple[float, int]], float]:
    """Of some steps halfway through the answers, and what the clock says of one."""
    decoder = side.engine._slot_decoder
    assert decoder is not None
    found: dict[str, tuple[float, int]] = {}
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    key, step = next(iter(decoder._steps.items()))
    half = side.work.answer_tokens // 2
    calls = 0

    def watched_step() -> None:
        nonlocal calls
        calls += 1
        if calls == half - DECODING_STEPS:
            start.record()
        if calls == half:
            stop.record()
            found.update(kernels(lambda: [step() for _ in range(DECODING_STEPS)]))
        step()

    decoder._steps[key] = watched_step
    side.rollout(WARM_STEPS + TIMED_STEPS)
    decoder._steps[key] = step
    torch.cuda.synchronize()
    return found, start.elapsed_time(stop) / DECODING_STEPS


def by_kind(found: dict[str, tuple[float, int]], wall_ms: float, times: int = 1) -> list[dict[str, Any]]:
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for name, (ms, count) in found.items():
        kind = next(kind for kind, pattern in KINDS if re.search(pattern, name))
        spent[kind] += ms / times
        calls[kind] += count
    rows = [
        {"work": kind, "ms": ms, "share": ms / wall_ms, "calls": calls[kind] / times}
        for kind, ms in spent.most_common()
    ]
    gap = wall_ms - sum(spent.values())
    return [*rows, {"work": "gap", "ms": gap, "share": gap / wall_ms}, {"work": "by the clock", "ms": wall_ms}]


def by_name(found: dict[str, tuple[float, int]], times: int = 1) -> list[dict[str, Any]]:
    listed = list(found.items())[:SHOWN_KERNELS]
    return [
        {"kernel": f"`{name[:80]}`", "ms": ms / times, "calls": calls / times, "us per call": ms / calls * 1e3}
        for name, (ms, calls) in listed
    ]


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-tokens", nargs="+", type=int, default=[256, 4096])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--answer-tokens", type=int, default=512)
    parser.add_argument("--micro-batch-tokens", type=int, help="of the update; the default is the package's")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--date")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
