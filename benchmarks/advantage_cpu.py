"""GRPO and every estimator on the CPU: ours and verl 0.9.1's in one run, interleaved, 2 threads.

    python benchmarks/advantage_cpu.py                        with verl installed
    python benchmarks/advantage_cpu.py --verl-wheel FILE.whl  with its wheel

The clone of the rewards is the yardstick: it touches as much fresh memory as any [rows, tokens] result must.
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


def interleaved_ms(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Medians over rounds in which every function runs once: a noisy moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(spent[1:]) for name, spent in times.items()}


def grpo_row(verl: Any, rows: int, width: int, mask_dtype: torch.dtype, repeats: int) -> dict[str, Any]:
    batch = tokens(rows, width, mask_dtype, "cpu")
    uids = labels(rows)
    fields = {**batch, "index": uids}
    rewards = batch["token_level_rewards"]
    scores = rewards.sum(-1)
    spent = interleaved_ms(
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
    row: dict[str, Any] = {"rows x tokens": f"{rows} x {width}", "mask": str(mask_dtype).removeprefix("torch.")}
    row |= {f"{name} ms": ms for name, ms in spent.items()}
    row["x verl grpo"] = spent["verl grpo"] / spent["ours"]
    row["x vectorized"] = spent["verl vectorized"] / spent["ours"]
    row["ours / clone"] = spent["ours"] / spent["clone"]
    row["scores x vectorized"] = spent["verl vectorized"] / spent["ours, scores"]
    return row


def estimator_rows(verl: Any, repeats: int) -> list[dict[str, Any]]:
    rows, width = 1024, 1024
    fields = {**tokens(rows, width, torch.int64, "cpu"), **token_fields(rows, width, "cpu"), "index": labels(rows)}
    result = []
    for name, theirs in verl.ADV_ESTIMATOR_REGISTRY.items():
        pair = {"verl ms": call(theirs, fields), "ours ms": call(ADV_ESTIMATOR_REGISTRY[name], fields)}
        spent = interleaved_ms(pair, repeats)
        result.append({"estimator": name, **spent, "x verl": spent["verl ms"] / spent["ours ms"]})
    return result


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
    grpo = [grpo_row(verl, *size, dtype, arguments.repeats) for size in SIZES for dtype in MASKS]
    publish(
        "advantage-cpu",
        "Advantages on a CPU: Groupwise beside verl 0.9.1",
        {
            "GRPO, groups of 8, float32 rewards, uuid labels": grpo,
            "Every estimator of verl, 1024 x 1024, int64 mask": estimator_rows(verl, max(3, arguments.repeats // 3)),
        },
        folder=arguments.out,
        date=arguments.date,
    )


if __name__ == "__main__":
    main()
