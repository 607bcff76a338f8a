"""The embedded default learns on a CPU: `groupwise train` for several seeds, and the same training under TRL.

    python benchmarks/learn_cpu.py                        # in the environment with TRL: make bench-train-cpu
    python benchmarks/learn_cpu.py --parts seeds --seeds 0 1
    python benchmarks/learn_cpu.py --parts trl --trl-seeds 3 actor.optim.lr=1e-4

seeds: the command as a user runs it, a seed after the other, from its start to its exit. `training s` are the seconds
of its steps; `wall s` has start-up, evaluations, checkpoints, report and export as well.

trl: the same model, questions, reward, batch, loss, learning rates and AdamW in TRL's GRPOTrainer. Each side has a
process of its own; they take turns, a step each. A side stops at the first evaluation that reaches the target.
`s to target` are the seconds of its steps up to there, without the first `warm-up` steps, which compile and are shown
apart, as start-up is (from the launch of the process to its first step). Accuracy is that of greedy answers to
held-out questions, found by the same code on both sides' weights, outside the time.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cpu_sides import SIDES, outside_share
from learn_curves import draw
from report import RESULTS, publish
from turns import Player

PARTS = ("seeds", "trl")
TARGET = 0.9
WARM_UP = 3


def main() -> None:
    arguments = read_arguments()
    tables: dict[str, list[dict[str, Any]]] = {}
    panels: dict[str, list[tuple[str, list[tuple[float, float]]]]] = {}
    if "seeds" in arguments.parts:
        runs = [run_seed(seed, arguments.settings) for seed in arguments.seeds]
        tables["groupwise train"] = [run["row"] for run in runs]
        tables["Accuracy by step"] = by_step(runs)
        panels["groupwise train: accuracy over seconds of training"] = [("ours", run["curve"]) for run in runs]
    if "trl" in arguments.parts:
        rows, curves = [], []
        for seed in arguments.trl_seeds:
            found = side_by_side(seed, arguments)
            rows += compared(seed, found)
            curves += [(side, result["curve"]) for side, result in found.items()]
        tables[f"Seconds to {TARGET:g} held-out accuracy"] = rows
        panels["the same under TRL, until 0.9"] = curves
    picture = f"{arguments.date}-learn-cpu.svg"
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / picture).write_text(draw(panels, 0.0), encoding="utf-8")
    told = "\n\n".join(" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:])
    publish(
        "learn-cpu",
        "The embedded default learns on a CPU",
        tables,
        folder=arguments.out,
        date=arguments.date,
        notes=f"{told}\n\nwarm-up: {WARM_UP} steps.\n\n![accuracy over seconds]({picture})",
    )


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="Groupwise's settings, for all runs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--trl-seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--evaluate-every", type=int, default=20, help="steps, of the part trl")
    parser.add_argument("--date", default=dt.datetime.now(tz=dt.UTC).date().isoformat())
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def run_seed(seed: int, settings: list[str]) -> dict[str, Any]:
    """One `groupwise train`: its row in the table, and its accuracy by step and over seconds."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [sys.executable, "-m", "groupwise", "train", f"trainer.seed={seed}", f"trainer.run_dir={run_dir}"]
        began = time.perf_counter()
        subprocess.run([*command, *settings], check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - began
        metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    spent, curve, steps = 0.0, [], []
    for row in metrics:
        spent += row.get("time/step", 0.0)
        if "eval/accuracy" in row:
            curve.append((spent, row["eval/accuracy"]))
            steps.append(row["step"])
    reached = next((seconds for seconds, accuracy in curve if accuracy >= TARGET), None)
    outside = [outside_share(row) for row in metrics[1:]]
    found = {
        "seed": seed, "start": curve[0][1], "last": curve[-1][1],
        f"s to {TARGET:g}": "" if reached is None else reached,
        "training s": spent, "wall s": wall, "steps": metrics[-1]["step"],
        "outside rollout, reward and update, %": 100 * statistics.median(outside),
    }  # fmt: skip
    print(json.dumps(found), flush=True)
    return {"row": found, "curve": curve, "steps": steps}


def by_step(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per evaluation, a column per seed."""
    names = [f"seed {run['row']['seed']}" for run in runs]
    curves = [dict(zip(run["steps"], (accuracy for _, accuracy in run["curve"]), strict=True)) for run in runs]
    return [
        {"step": step, **{name: curve[step] for name, curve in zip(names, curves, strict=True)}}
        for step in runs[0]["steps"]
    ]


def side_by_side(seed: int, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Of each side: start-up, the seconds of its steps, and its accuracy over them, until it reaches the target."""
    program = [sys.executable, str(Path(__file__).with_name("cpu_sides.py"))]
    options = [f"trainer.seed={seed}", *arguments.settings, "--evaluate-every", str(arguments.evaluate_every)]
    found: dict[str, dict[str, Any]] = {}
    players: dict[str, Player] = {}
    with ExitStack() as running:
        for side in SIDES:
            launched = time.perf_counter()
            players[side] = running.enter_context(Player([*program, side, *options]))
            begun = players[side].hear()
            started = time.perf_counter() - launched
            found[side] = {"start-up": started, "steps": [], "curve": [(0.0, begun["accuracy"])]}
        learning = list(SIDES)
        while learning:
            for side in list(learning):
                turn, result = players[side].turn(), found[side]
                result["steps"].append(turn["seconds"]["step"])
                if "accuracy" in turn:
                    result["curve"].append((sum(result["steps"][WARM_UP:]), turn["accuracy"]))
                    print(f"seed {seed}, {side}, {len(result['steps'])} steps: {turn['accuracy']:.3f}", flush=True)
                if turn["is_last"] or turn.get("accuracy", 0.0) >= TARGET:
                    learning.remove(side)
            learning.reverse()
    return found


def compared(seed: int, found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for side, result in found.items():
        seconds, last = result["curve"][-1]
        steps = result["steps"]
        rows.append(
            {
                "seed": seed, "side": side, "start": result["curve"][0][1], "last": last,
                "s to target": seconds if last >= TARGET else "", "steps": len(steps),
                "s per step": statistics.median(steps[WARM_UP:]), "warm-up s": sum(steps[:WARM_UP]),
                "start-up s": result["start-up"],
            }
        )  # fmt: skip
    mine, theirs = rows
    if mine["s to target"] and theirs["s to target"]:
        mine["x TRL"] = theirs["s to target"] / mine["s to target"]
    mine["x TRL by step"] = theirs["s per step"] / mine["s per step"]
    return rows


if __name__ == "__main__":
    main()
