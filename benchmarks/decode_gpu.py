"""Tokens per second of the embedded engine on one NVIDIA GPU: by batch size, by mix of lengths, by prompt.

    python benchmarks/decode_gpu.py
    python benchmarks/decode_gpu.py --parts sizes --sizes 8 128
    python benchmarks/decode_gpu.py --device cpu --shape tiny --sizes 8 32 --rows 8 --answers 64 --answer-tokens 64 \
        --share 16 --prompt-tokens 16 --long-prompt-tokens 64 --long-prompts 4

A random model, groups of 8. Every line calls `EmbeddedEngine.generate` twice with the same prompts: the first call
(compiling, capturing) is shown apart, the second counts, from prompts to texts with nothing left out.

sizes: so many answers in so many rows, all of the longest length, since no token ends an answer. The share of the floor
is that of benchmarks/floor.py, with the rates measured in this run.

lengths: more answers than rows. One token of the vocabulary in SHARE ends an answer, which makes lengths of a random
model nearly geometric: a mean of about SHARE, few of them long. A row whose answer has ended takes the next one. Beside
it what the same answers cost without that: batches of as many answers as there are rows, each batch as long as its
longest answer, each token at the price that the line of equal lengths with as many rows pays for one.

prompts: long prompts, with the room for keys and values that a run has by default, and with room for half of the
prompts at a time, so that the others wait for their turn.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from floor import Rates, Work, rollout_seconds
from random_model import EOS, SHAPES, dtype_of, make_model, make_prompts
from report import RESULTS, publish

from groupwise.config import RolloutConfig
from groupwise.policy.load import wrap
from groupwise.rollout import EmbeddedEngine
from groupwise.types import Group, Prompt, Sampling, Task

PARTS = ("sizes", "lengths", "prompts")
GROUP = 8


class Bench:
    """The model, and engines over it that end answers or do not."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.shape, self.device = SHAPES[arguments.shape], arguments.device
        model, tokenizer = make_model(self.shape, self.device)
        self.policy = wrap(model, tokenizer, compiles=self.device == "cuda")
        self.rates = Rates.measure(self.device)

    def engine(self, rows: int, share: int | None = None, memory: float | None = None) -> EmbeddedEngine:
        """share: one token in so many ends an answer, None: none does."""
        ends = () if share is None else range(EOS, self.policy.vocab_size, share)
        self.policy.eos_ids = frozenset(ends)
        return EmbeddedEngine(self.policy, rows, memory or RolloutConfig().gpu_memory_utilization)

    def prompts(self, answers: int, width: int) -> list[Prompt]:
        texts = make_prompts(answers // GROUP, width)
        tasks = [Task(str(place), text, "") for place, text in enumerate(texts)]
        return [Prompt(f"0-{task.key}", task, self.policy.encode(task)) for task in tasks]

    def measure(self, engine: EmbeddedEngine, answers: int, width: int) -> tuple[dict[str, Any], list[int]]:
        """A row of a table, and the lengths of the answers."""
        prompts = self.prompts(answers, width)
        sampling = Sampling(max_tokens=self.arguments.answer_tokens)
        seconds: list[float] = []
        groups: list[Group] = []
        for _ in range(2):
            started = self.clock()
            groups = engine.generate(prompts, GROUP, sampling)
            seconds.append(self.clock() - started)
        lengths = [len(answer.token_ids) for group in groups for answer in group.completions]
        row = {
            "answers": answers, "rows": min(answers, engine.max_num_seqs), "prompt": width, "tokens": sum(lengths),
            "longest": max(lengths), "seconds": seconds[1], "tokens/s": sum(lengths) / seconds[1],
            "first call s": seconds[0],
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        return row, lengths

    def equal(self, engine: EmbeddedEngine, answers: int, width: int) -> dict[str, Any]:
        """A row of answers that all have the longest length."""
        row, lengths = self.measure(engine, answers, width)
        work = Work(answers // GROUP, GROUP, width, self.arguments.answer_tokens)
        floor = rollout_seconds(self.shape, work, self.rates, dtype_of(self.device).itemsize)
        per_token = row["seconds"] / max(lengths) * 1e3
        return row | {"ms per token": per_token, "floor s": floor, "share of the floor": floor / row["seconds"]}

    def clock(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def size_rows(bench: Bench) -> list[dict[str, Any]]:
    arguments = bench.arguments
    return [bench.equal(bench.engine(answers), answers, arguments.prompt_tokens) for answers in sorted(arguments.sizes)]


def length_rows(bench: Bench, equal: dict[str, Any] | None) -> list[dict[str, Any]]:
    """equal: the line of as many answers as rows, where it was measured before."""
    arguments, rows = bench.arguments, bench.arguments.rows
    if equal is None:
        equal = bench.equal(bench.engine(rows), rows, arguments.prompt_tokens)
    mixed, lengths = bench.measure(bench.engine(rows, arguments.share), arguments.answers, arguments.prompt_tokens)
    padded = sum(longest_of_batches(lengths, rows)) * equal["ms per token"] / 1e3
    mixed |= {"mean length": sum(lengths) / len(lengths), "padded s": padded, "x padded": padded / mixed["seconds"]}
    columns = [*mixed, *(name for name in equal if name not in mixed)]
    shown = {"equal": equal, f"1 token in {arguments.share} ends": mixed}
    return [{"lengths": name} | {c: row[c] for c in columns if c in row} for name, row in shown.items()]


def longest_of_batches(lengths: Sequence[int], rows: int) -> list[int]:
    return [max(lengths[start : start + rows]) for start in range(0, len(lengths), rows)]


def prompt_rows(bench: Bench) -> list[dict[str, Any]]:
    arguments, width = bench.arguments, bench.arguments.long_prompt_tokens
    answers = arguments.long_prompts * GROUP
    lines = [{"room": "default"} | bench.equal(bench.engine(answers), answers, width)]
    if bench.device == "cuda":
        # Half of the room goes to prompts; one token more of each half, so that rounding takes none away.
        token_bytes = bench.shape.token_elements * dtype_of(bench.device).itemsize
        room = (arguments.long_prompts * width + 2) * token_bytes
        engine = bench.engine(answers, None, room / torch.cuda.get_device_properties(0).total_memory)
        lines.append({"room": "half of the prompts"} | bench.equal(engine, answers, width))
    # How many rows fit into the room is the engine's to say.
    return [{name: value for name, value in line.items() if name != "rows"} for line in lines]


def main() -> None:
    arguments = read_arguments()
    bench = Bench(arguments)
    tables: dict[str, list[dict[str, Any]]] = {}
    sizes: list[dict[str, Any]] = []
    if "sizes" in arguments.parts:
        tables["By batch size"] = sizes = size_rows(bench)
    if "lengths" in arguments.parts:
        equal = next((row for row in sizes if row["answers"] == arguments.rows), None)
        tables["By mix of lengths"] = length_rows(bench, equal)
    if "prompts" in arguments.parts:
        tables["Long prompts"] = prompt_rows(bench)
    notes = "\n\n".join(__doc__.split("\n\n")[2:]).strip()
    publish(
        "decode-gpu",
        f"Sampling on a GPU: {arguments.shape}, {str(dtype_of(arguments.device)).removeprefix('torch.')}",
        tables,
        folder=arguments.out,
        date=arguments.date,
        notes=f"{notes}\n\nRates measured in this run: {bench.rates}. SHARE is {arguments.share}.",
    )


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[8, 32, 128, 512], help="answers, multiples of 8")
    parser.add_argument("--answer-tokens", type=int, default=512)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--rows", type=int, default=128, help="of the mixed lengths")
    parser.add_argument("--answers", type=int, default=512, help="of mixed lengths")
    parser.add_argument("--share", type=int, default=128, help="one token in so many ends an answer")
    parser.add_argument("--long-prompt-tokens", type=int, default=4096)
    parser.add_argument("--long-prompts", type=int, default=16)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--date")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for name, answers in (("sizes", arguments.sizes), ("rows", [arguments.rows]), ("answers", [arguments.answers])):
        if any(number < GROUP or number % GROUP for number in answers):
            parser.error(f"--{name} {answers}: groups have {GROUP} answers, so give multiples of it")
    return arguments


if __name__ == "__main__":
    main()
