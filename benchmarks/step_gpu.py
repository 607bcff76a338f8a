"""One whole GRPO step on one NVIDIA GPU, ours and TRL's in one run, phase by phase, with peak memory.

    python benchmarks/step_gpu.py                          # both rows of the table, ours and TRL 1.16
    python benchmarks/step_gpu.py --sides ours --prompt-tokens 256

A random model of Qwen3-0.6B's shape in bfloat16, 16 prompts x 8 answers of 512 tokens, no end-of-sequence in practice,
one optimiser step. Every side runs in a process of its own; the first step of each (compiling, warming up) is shown
apart, the others' median counts. The floor is bytes over the copy bandwidth and operations over the matrix rate, both
measured in this run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SHAPE = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768,
}  # fmt: skip
SIDES = ("ours", "trl")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--prompt-tokens", nargs="+", type=int, default=[256, 4096])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--answer-tokens", type=int, default=512)
    parser.add_argument("--micro-batch-tokens", type=int, default=16384)
    parser.add_argument("--date")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        from step_sides import ours, trl

        result = (ours if arguments.child == "ours" else trl)(arguments, SHAPE)
        print("RESULT " + json.dumps(result), flush=True)
        return
    rows = [measured(side, width, arguments) for width in arguments.prompt_tokens for side in arguments.sides]
    for row in rows:
        print(json.dumps(row), flush=True)
    publish_table(rows, arguments)


def measured(side: str, width: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One side in a process of its own; the median of its steps but for the first."""
    options = {
        "--prompt-tokens": width, "--steps": arguments.steps, "--prompts": arguments.prompts, "--n": arguments.n,
        "--answer-tokens": arguments.answer_tokens, "--micro-batch-tokens": arguments.micro_batch_tokens,
    }  # fmt: skip
    words = [str(word) for pair in options.items() for word in pair]
    command = [sys.executable, __file__, "--child", side, *words]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = [line for line in child.stdout.splitlines() if line.startswith("RESULT ")]
    row: dict[str, Any] = {"prompt tokens": width, "side": side}
    if not lines:
        return row | {"failed": child.stdout[-300:]}
    found = json.loads(lines[-1].removeprefix("RESULT "))
    for phase, seconds in found["seconds"].items():
        row[f"{phase} s"] = statistics.median(seconds[1:])
        row[f"first {phase} s"] = seconds[0]
    return row | {"peak GiB": found["peak"] / 2**30, **found["notes"]}


def publish_table(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    from report import RESULTS, publish

    for row in rows:
        other = next((r for r in rows if r["side"] == "trl" and r["prompt tokens"] == row["prompt tokens"]), None)
        if row["side"] == "ours" and other and "step s" in other:
            row |= {
                "x TRL": other["step s"] / row["step s"],
                "share of TRL's memory": row["peak GiB"] / other["peak GiB"],
            }
    title = f"One GRPO step: {arguments.prompts} prompts x {arguments.n} answers of {arguments.answer_tokens} tokens"
    publish("step-gpu", title, {"Qwen3-0.6B's shape, bfloat16": rows},
            folder=arguments.out or RESULTS, date=arguments.date, notes=__doc__.split("\n\n")[2])  # fmt: skip


if __name__ == "__main__":
    main()
