"""One whole GRPO step on one NVIDIA GPU, ours and TRL's in one run, phase by phase, with peak memory.

    python benchmarks/step_gpu.py                                        # both widths, ours and TRL 1.16
    python benchmarks/step_gpu.py --sides ours --prompt-tokens 256
    python benchmarks/step_gpu.py --device cpu --shape tiny --prompts 2 --n 4 --answer-tokens 8 --prompt-tokens 16 64

A random model, no end-of-sequence in practice, one optimiser step. Every side runs in a process of its own under its
default settings, which on TRL's side means `generate` of transformers. The first step of each (compiling, warming up)
is shown apart; of the others the median counts. A second prompt width finds on disk what the first had compiled.
judge: rewards and advantages; TRL's also pads the batch there. On a GPU the model is in bfloat16; TRL's optimizer
updates these weights, ours float32 weights kept beside them. peak: of the memory in use; reserved: of what torch's
allocator took for that, gaps and captured graphs included.

The floor is the least time the work can take on this device (benchmarks/floor.py has the formulas). Rollout: per token
the larger of bytes over the bandwidth of a copy (weights once, every prompt's keys and values once, every answer's own
once) and operations over the rate of a matrix product; before it the prompts' own pass. Update: operations of one
forward and one backward pass, the prompt once per group, over that rate. Both rates are measured in this run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from floor import Rates, Work, rollout_seconds, update_seconds
from processes import run_child
from random_model import SHAPES, dtype_of
from report import RESULTS, publish

SIDES = ("ours", "trl")
PHASES = ("rollout", "judge", "update", "step")


def main() -> None:
    arguments = read_arguments()
    if arguments.child:
        from step_sides import SIDES as FUNCTIONS
        from step_sides import Order

        work = work_of(arguments, arguments.prompt_tokens[0])
        shape, steps = SHAPES[arguments.shape], arguments.steps
        FUNCTIONS[arguments.child](Order(shape, arguments.device, work, steps, arguments.micro_batch_tokens))
        return
    found = {}
    for place, width in enumerate(arguments.prompt_tokens):
        for side in arguments.sides:
            steps = arguments.steps if side == "ours" else arguments.trl_steps[min(place, len(arguments.trl_steps) - 1)]
            found[width, side] = run_child(command(side, width, steps, arguments), arguments.child_seconds)
            print(f"{side}, prompt {width}: {json.dumps(found[width, side])}", flush=True)
        # After every width: what is measured is kept, whatever ends the next one.
        publish_tables(found, arguments)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--prompt-tokens", nargs="+", type=int, default=[256, 4096])
    parser.add_argument("--steps", type=int, default=4, help="of ours, the first one included")
    parser.add_argument("--trl-steps", nargs="+", type=int, default=[3, 2], help="one number per prompt width")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--answer-tokens", type=int, default=512)
    parser.add_argument("--micro-batch-tokens", type=int, help="of our update; the default is the package's")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--child-seconds", type=float, default=240.0, help="after which a side is ended")
    parser.add_argument("--date")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.child and min(arguments.steps, *arguments.trl_steps) < 2:
        parser.error("the first step is not counted: give at least 2")
    return arguments


def work_of(arguments: argparse.Namespace, width: int) -> Work:
    return Work(arguments.prompts, arguments.n, width, arguments.answer_tokens)


def command(side: str, width: int, steps: int, arguments: argparse.Namespace) -> list[str]:
    options = {
        "--child": side, "--prompt-tokens": width, "--steps": steps, "--prompts": arguments.prompts,
        "--n": arguments.n, "--answer-tokens": arguments.answer_tokens, "--shape": arguments.shape,
        "--device": arguments.device,
    }  # fmt: skip
    if arguments.micro_batch_tokens is not None:
        options["--micro-batch-tokens"] = arguments.micro_batch_tokens
    return [sys.executable, __file__, *(str(word) for pair in options.items() for word in pair)]


def publish_tables(found: dict[tuple[int, str], dict[str, Any]], arguments: argparse.Namespace) -> None:
    rates = Rates.measure(arguments.device)
    steps = [step_row(width, side, found) for width, side in found]
    floors = [floor_row(width, side, child, rates, arguments) for (width, side), child in found.items()]
    first = [first_row(width, side, child) for (width, side), child in found.items() if child.get("seconds")]
    title = f"One GRPO step: {arguments.prompts} prompts x {arguments.n} answers of {arguments.answer_tokens} tokens"
    told, defined = __doc__.split("\n\n")[2:4]
    tables = {
        f"{arguments.shape}, {str(dtype_of(arguments.device)).removeprefix('torch.')}": steps,
        "Share of the floor: the least time over the time taken": floors,
        "The first step": first,
    }
    publish(
        "step-gpu",
        title,
        {heading: rows for heading, rows in tables.items() if rows},
        folder=arguments.out,
        date=arguments.date,
        notes=f"{told}\n\n{defined.strip()}\n\nRates measured in this run: {rates}.",
    )


def step_row(width: int, side: str, found: dict[tuple[int, str], dict[str, Any]]) -> dict[str, Any]:
    child, other = found[width, side], found.get((width, "trl"), {})
    row: dict[str, Any] = {"prompt tokens": width, "side": side}
    seconds, theirs = medians(child), medians(other)
    row |= {f"{phase} s": seconds[phase] for phase in PHASES if seconds}
    if seconds:
        row |= {"steps counted": len(child["seconds"]["step"]) - 1, "peak GiB": child["peak"] / 2**30}
        row["reserved GiB"] = child["reserved"] / 2**30
    if side == "ours" and seconds and theirs:
        row |= {"x TRL": theirs["step"] / seconds["step"], "share of TRL's memory": child["peak"] / other["peak"]}
    row |= child.get("notes", {})
    return row | ({"failed": child["failed"]} if "failed" in child else {})


def floor_row(
    width: int, side: str, child: dict[str, Any], rates: Rates, arguments: argparse.Namespace
) -> dict[str, Any]:
    work, shape = work_of(arguments, width), SHAPES[arguments.shape]
    rollout = rollout_seconds(shape, work, rates, dtype_of(arguments.device).itemsize)
    least = {"rollout": rollout, "update": update_seconds(shape, work, rates)}
    least["step"] = sum(least.values())
    row: dict[str, Any] = {"prompt tokens": width, "side": side}
    row |= {f"floor {phase} s": seconds for phase, seconds in least.items()}
    seconds = medians(child)
    return row | {f"{phase} share": least[phase] / seconds[phase] for phase in least if seconds}


def first_row(width: int, side: str, child: dict[str, Any]) -> dict[str, Any]:
    row = {"prompt tokens": width, "side": side}
    return row | {f"first {phase} s": child["seconds"][phase][0] for phase in PHASES}


def medians(child: dict[str, Any]) -> dict[str, float]:
    """Of every phase, the first step left out; nothing where there is no second one."""
    seconds: dict[str, list[float]] = child.get("seconds", {})
    return {phase: statistics.median(found[1:]) for phase, found in seconds.items() if len(found) > 1}


if __name__ == "__main__":
    main()
