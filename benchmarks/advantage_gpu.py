"""GRPO and every estimator on one NVIDIA GPU: ours and verl 0.9.1's in one run, against the copy bandwidth of that run.

    python benchmarks/advantage_gpu.py --verl-wheel verl-0.9.1-py3-none-any.whl

wall: call to result, host time included. device: the GPU's own time, the call queued behind other work (verl's
loops wait for the GPU themselves, so they have no such time). Bytes: rewards and mask read once, advantages
written once; the share of the bandwidth is bytes over device time over the bandwidth of a copy.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from peers import load_verl
from report import RESULTS, publish
from timing import copy_bandwidth, device_ms, wall_ms
from workload import call, labels, token_fields, tokens

from groupwise.advantages import ADV_ESTIMATOR_REGISTRY, Groups, compute_grpo_outcome_advantage

SIZES = ((256, 1024), (1024, 4096), (4096, 8192), (8192, 16384))
SMALL_SIZE = (1024, 4096)


def grpo_row(verl: Any, rows: int, width: int, mask_dtype: torch.dtype, bandwidth: float) -> dict[str, Any]:
    batch = tokens(rows, width, mask_dtype, "cuda")
    uids = labels(rows)
    groups = Groups.of(uids, device="cuda")
    loop = wall_ms(call(verl.compute_grpo_outcome_advantage, {**batch, "index": uids}), repeats=3, warmup=1)
    vectorised = wall_ms(call(verl.compute_grpo_vectorized_outcome_advantage, {**batch, "index": uids}))
    ours = call(compute_grpo_outcome_advantage, {**batch, "index": groups})
    wall, device = wall_ms(ours, repeats=25), device_ms(ours)
    with_labels = wall_ms(call(compute_grpo_outcome_advantage, {**batch, "index": uids}), repeats=25)
    error = (ours()[0] - verl.compute_grpo_outcome_advantage(**batch, index=uids)[0]).abs().max().item()
    num_bytes = rows * width * (4 + 4 + batch["response_mask"].element_size())
    return {
        "rows x tokens": f"{rows} x {width}",
        "mask": str(mask_dtype).removeprefix("torch."),
        "verl grpo wall ms": loop,
        "verl vectorized wall ms": vectorised,
        "ours wall ms": wall,
        "ours device ms": device,
        "floor ms": num_bytes / bandwidth,
        "share of bandwidth": num_bytes / bandwidth / device,
        "x verl grpo": loop / wall,
        "x vectorized": vectorised / wall,
        "labels too, wall ms": with_labels,
        "x verl grpo, labels": loop / with_labels,
        "x vectorized, labels": vectorised / with_labels,
        "max difference": error,
    }


def estimator_rows(verl: Any, bandwidth: float) -> list[dict[str, Any]]:
    rows, width = SMALL_SIZE
    fields = {**tokens(rows, width, torch.int64, "cuda"), **token_fields(rows, width, "cuda")}
    uids = labels(rows)
    groups = Groups.of(uids, device="cuda")
    result = []
    for name, theirs in verl.ADV_ESTIMATOR_REGISTRY.items():
        their_ms = wall_ms(call(theirs, {**fields, "index": uids}), repeats=3, warmup=1)
        ours = call(ADV_ESTIMATOR_REGISTRY[name], {**fields, "index": groups})
        row = {"estimator": name, "verl wall ms": their_ms, "ours wall ms": wall_ms(ours, repeats=25)}
        row["x verl"] = row["verl wall ms"] / row["ours wall ms"]
        if name == "remax":
            num_bytes = rows * width * (4 + 8 + 4 + 4)
            row |= {"ours device ms": device_ms(ours), "floor ms": num_bytes / bandwidth}
            row["share of bandwidth"] = row["floor ms"] / row["ours device ms"]
        result.append(row)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--verl-wheel", help="without it the installed verl is used")
    parser.add_argument("--date")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    verl = load_verl(arguments.verl_wheel)
    bandwidth = copy_bandwidth()
    grpo = [grpo_row(verl, *size, dtype, bandwidth) for dtype in (torch.int64, torch.bool) for size in SIZES]
    publish(
        "advantage-gpu",
        "Advantages on a GPU: Groupwise beside verl 0.9.1",
        {
            "GRPO, groups of 8, float32 rewards, uuid labels": grpo,
            f"Every estimator of verl, {SMALL_SIZE[0]} x {SMALL_SIZE[1]}, int64 mask": estimator_rows(verl, bandwidth),
        },
        folder=arguments.out,
        date=arguments.date,
        notes=f"Copy bandwidth measured in this run: {bandwidth / 1e9:.2f} TB/s, read and written.",
    )


if __name__ == "__main__":
    main()
