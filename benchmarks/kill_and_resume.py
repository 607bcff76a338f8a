"""A run killed with SIGKILL at random moments and resumed each time, beside one that was never interrupted.

    python benchmarks/kill_and_resume.py
    python benchmarks/kill_and_resume.py --runs 5 --kills 10 --steps 100

The command is `groupwise train` with the embedded model. A killed run is resumed by `groupwise train --resume`, killed
again after another random time, and so on; after its last kill it may end. Compared are the bytes of the weights and of
every rollout file, and the rows of metrics.jsonl without what is under `time/`. A kill may come at any moment: while
Python loads, during a step, in the middle of a write. Steps lost are those done again after a kill.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import RESULTS, publish

PROGRAM = [sys.executable, "-m", "groupwise", "train"]


def main() -> None:
    arguments = read_arguments()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        began = time.perf_counter()
        subprocess.run(start(whole, arguments), check=True, stdout=subprocess.DEVNULL)
        longest = time.perf_counter() - began
        expected = fingerprint(whole)
        rows = [killed_run(Path(folder) / f"run{n}", expected, longest, n, arguments) for n in range(arguments.runs)]
    told = "\n\n".join(" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:])
    publish(
        "kill-and-resume",
        "Killed and resumed",
        {"Runs": rows, "All of them": [summary(rows)], "What every run ends with": [expected]},
        folder=arguments.out,
        date=arguments.date,
        notes=f"{told}\n\n{arguments.steps} steps, a checkpoint every {arguments.save_freq}; an uninterrupted run took "
        f"{longest:.0f} s.",
    )
    if not all(row["identical"] for row in rows):
        raise SystemExit("a run that was killed and resumed differs from the one that was not")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--kills", type=int, default=8, help="of every run")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--save-freq", type=int, default=10)
    parser.add_argument("--date")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def start(run_dir: Path, arguments: argparse.Namespace) -> list[str]:
    settings = {
        "run_dir": run_dir, "total_training_steps": arguments.steps, "save_freq": arguments.save_freq,
        "test_freq": 20,
    }  # fmt: skip
    return [*PROGRAM, *(f"trainer.{name}={value}" for name, value in settings.items())]


def killed_run(
    run_dir: Path, expected: dict[str, str], longest: float, number: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One run and all its kills; moments are drawn so that the last of them still finds it at work."""
    moments = random.Random(number)
    kills = lost = 0
    while True:
        is_begun = (run_dir / "config.yaml").exists()
        lost = max(lost, steps_done(run_dir) - newest_checkpoint(run_dir))
        command = [*PROGRAM, "--resume", str(run_dir)] if is_begun else start(run_dir, arguments)
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        limit = moments.uniform(0.0, 2.0 * longest / arguments.kills) if kills < arguments.kills else None
        try:
            _, said = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            kills += 1
            continue
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}: {said}")
        found = fingerprint(run_dir)
        return {"run": number, "kills": kills, "most steps lost": lost, "identical": found == expected}


def steps_done(run_dir: Path) -> int:
    """Steps whose row is written."""
    metrics = run_dir / "metrics.jsonl"
    return max(0, metrics.read_bytes().count(b"\n") - 1) if metrics.exists() else 0


def newest_checkpoint(run_dir: Path) -> int:
    return max((int(path.name.removeprefix("step_")) for path in run_dir.glob("checkpoints/step_*")), default=0)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "runs": len(rows),
        "kills": sum(row["kills"] for row in rows),
        "identical": f"{sum(row['identical'] for row in rows)} of {len(rows)}",
        "most steps lost": max(row["most steps lost"] for row in rows),
    }


def fingerprint(run_dir: Path) -> dict[str, str]:
    """sha256 of what must not depend on whether a run was interrupted."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    rollouts = b"".join(path.name.encode() + path.read_bytes() for path in sorted(run_dir.glob("rollouts/*")))
    parts = {
        "metrics": json.dumps(kept).encode(),
        "rollouts": rollouts,
        "weights": (run_dir / "model" / "model.safetensors").read_bytes(),
    }
    return {f"{name} sha256": hashlib.sha256(part).hexdigest()[:16] for name, part in parts.items()}


if __name__ == "__main__":
    main()
