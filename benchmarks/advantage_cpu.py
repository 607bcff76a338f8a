"""GRPO and every estimator on the CPU: ours and verl 0.9.1's in one run, interleaved, 2 threads.

    python benchmarks/advantage_cpu.py                        with verl installed
    python benchmarks/advantage_cpu.py --verl-wheel FILE.whl  with its wheel

The clone of the rewards is the yardstick: it touches as much fresh memory as any [rows, tokens] result must, in the
small pages that torch gets. Ours asks for huge ones where the system grants them on request (`madvise` or `always`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import load_verl
from report import RESULTS, publish
from workload import call, labels, token_fields, tokens

from groupwise.advantages import (
    ADV_ESTIMATOR_REGISTRY,
    Groups,
    advantages_from_scores,
    compute_grpo_outcome_advantage,
)

SIZES = ((1024, 1024), (8192, 1024))
MASKS = (torch.float32, torch.int64, torch.bool)


Times = dict[str, list[float]]


def interleaved_ms(functions: dict[str, Callable[[], Any]], repeats: int) -> Times:
    """Rounds in which every function runs once, after one that does not count: a noisy moment hits all of them."""
    times: Times = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: spent[1:] for name, spent in times.items()}


def ratio(times: Times, over: str, under: str) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def medians(times: Times) -> dict[str, float]:
    return {f"{name} ms": statistics.median(spent) for name, spent in times.items()}


def grpo_row(verl: Any, rows: int, width: int, mask_dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    batch = tokens(rows, width, mask_dtype, "cpu")
    uids = labels(rows)
    fields = {**batch, "index": uids}
    rewards = batch["token_level_rewards"]
    scores = rewards.sum(-1)
    times = interleaved_ms(
        {
            "clone": rewards.clone,
            "verl grpo": call(verl.compute_grpo_outcome_advantage, fields),
            "verl vectorized": call(verl.compute_grpo_vectorized_outcome_advantage, fields),
            "ours": call(compute_grpo_outcome_advantage, fields),
            "ours, scores": lambda: advantages_from_scores(scores, uids),
            "labels": lambda: Groups.of(uids),
        },
        repeats,
    )
    return {
        "rows x tokens": f"{rows} x {width}",
        "mask": str(mask_dtype).removeprefix("torch."),
        **medians(times),
        "x verl grpo": ratio(times, "verl grpo", "ours"),
        "x vectorized": ratio(times, "verl vectorized", "ours"),
        "ours / clone": ratio(times, "ours", "clone"),
        "scores x vectorized": ratio(times, "verl vectorized", "ours, scores"),
    }


def estimator_rows(verl: Any, rows: int, width: int, repeats: int) -> list[dict[str, Any]]:
    fields = {**tokens(rows, width, torch.int64, "cpu"), **token_fields(rows, width, "cpu"), "index": labels(rows)}
    result = []
    for name, theirs in verl.ADV_ESTIMATOR_REGISTRY.items():
        pair = {"verl": call(theirs, fields), "ours": call(ADV_ESTIMATOR_REGISTRY[name], fields)}
        times = interleaved_ms(pair, repeats)
        result.append({"estimator": name, **medians(times), "x verl": ratio(times, "verl", "ours")})
    return result


def huge_pages() -> str:
    """What the system says about huge pages, such as "always [madvise] never"."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.read_text().strip() if setting.exists() else "not offered"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--verl-wheel", help="without it the installed verl is used")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--date")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    verl = load_verl(arguments.verl_wheel)
    repeats = arguments.repeats
    tables = {
        "GRPO, groups of 8, float32 rewards, uuid labels": [
            grpo_row(verl, *size, dtype, repeats) for size in SIZES for dtype in MASKS
        ]
    }
    for rows, width in SIZES:
        heading = f"Every estimator of verl, {rows} x {width}, int64 mask"
        tables[heading] = estimator_rows(verl, rows, width, max(3, repeats // 3))
    publish(
        "advantage-cpu",
        "Advantages on a CPU: Groupwise beside verl 0.9.1",
        tables,
        folder=arguments.out,
        date=arguments.date,
        notes=f"Times are medians over {repeats} rounds ({max(3, repeats // 3)} in the later tables) in which all run "
        f"in turn; a ratio is the median of the ratios within a round. 2 threads. Huge pages: {huge_pages()}.",
    )


if __name__ == "__main__":
    main()
