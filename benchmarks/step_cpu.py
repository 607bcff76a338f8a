"""One whole GRPO step on a CPU, ours and TRL's in one run, phase by phase.

    python benchmarks/step_cpu.py                       # in the environment with TRL: make bench-train-cpu
    python benchmarks/step_cpu.py --rounds 3 --answer-tokens 8 --prompts 2

A random Qwen3 of 0.8 million parameters in float32, 8 prompts of 32 tokens x 8 answers of 64, temperature 1, one
optimiser step. The end-of-sequence token has no logit, so every answer has full length. Each side has a process of its
own; they take turns, a step each, the order changing from round to round. The first steps of each are left out of the
medians and shown apart. `x TRL` is the median over the rounds of TRL's step over ours. Processor seconds are those of
all threads. Under `outside` stands what the step of our loop spends beside rollout, reward and update: advantages, the
answers' file, and the loop itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpu_sides import SIDES
from report import RESULTS, publish
from turns import Player

SHAPE = {
    "vocab_size": 128, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 8192,
}  # fmt: skip
PHASES = ("rollout", "judge", "update", "step")


def distinct_letters(completions: Sequence[str], **_: Any) -> list[float]:
    """A reward in TRL's signature that costs next to nothing and differs from answer to answer."""
    return [len(set(text)) / 50 for text in completions]


def main() -> None:
    parser = argparse.ArgumentParser()
    sizes = (("rounds", 30), ("warmup", 3), ("prompts", 8), ("n", 8), ("prompt-tokens", 32), ("answer-tokens", 64))
    for name, default in sizes:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, help="of each side; torch's own choice unless given")
    parser.add_argument("--date")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(settings(arguments, Path(folder)), arguments)
    publish(
        "step-cpu",
        f"One GRPO step on a CPU: {arguments.prompts} x {arguments.n} answers of {arguments.answer_tokens} tokens",
        {
            "Steps, warm": table(found, arguments.warmup),
            "Of our step": [our_shares(found["ours"], arguments.warmup)],
        },
        folder=arguments.out,
        date=arguments.date,
        notes=notes(found),
    )


def settings(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """The model and the prompts, written to files, and a run's settings that name them."""
    make_model(folder / "model")
    letters = random.Random(0)
    count = arguments.prompts * (arguments.rounds + arguments.warmup)
    prompts = ["".join(letters.choice("abcdefghij") for _ in range(arguments.prompt_tokens)) for _ in range(count)]
    lines = [json.dumps({"prompt": prompt, "answer": ""}) + "\n" for prompt in prompts]
    (folder / "prompts.jsonl").write_text("".join(lines))
    threads = [f"trainer.num_threads={arguments.threads}"] if arguments.threads else []
    return [
        f"model.path={folder / 'model'}",
        "model.device=cpu",
        f"data.train_files=[{folder / 'prompts.jsonl'}]",
        "data.shuffle=false",
        f"data.train_batch_size={arguments.prompts}",
        f"data.max_response_length={arguments.answer_tokens}",
        f"rollout.n={arguments.n}",
        f"reward.function={Path(__file__).resolve()}:distinct_letters",
        "actor.optim.lr=1e-6",
        f"trainer.total_training_steps={arguments.rounds + arguments.warmup}",
        *threads,
    ]


def make_model(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    # One token per character; the end of sequence is the first token past those the model knows.
    characters = [chr(i) for i in (*range(33, 127), *range(192, 192 + SHAPE["vocab_size"] - 95))]
    vocabulary = {c: i for i, c in enumerate(["<pad>", *characters, "<eos>"])}
    assert vocabulary["<eos>"] == SHAPE["vocab_size"]
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", padding_side="left")
    eos = vocabulary["<eos>"]
    config = Qwen3Config(**SHAPE, tie_word_embeddings=True, bos_token_id=None, eos_token_id=eos, pad_token_id=0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measured(run: list[str], arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Of each side its start-up, its steps in order, and what it said of itself."""
    program = [sys.executable, str(Path(__file__).with_name("cpu_sides.py"))]
    found: dict[str, dict[str, Any]] = {}
    with Player([*program, SIDES[0], *run]) as first, Player([*program, SIDES[1], *run]) as second:
        players = dict(zip(SIDES, (first, second), strict=True))
        for side, player in players.items():
            found[side] = {"begun": player.hear(), "steps": []}
        for number in range(arguments.warmup + arguments.rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                found[side]["steps"].append(players[side].turn())
    return found


def table(found: dict[str, dict[str, Any]], warmup: int) -> list[dict[str, Any]]:
    rows = []
    for side, result in found.items():
        warm = result["steps"][warmup:]
        row: dict[str, Any] = {"side": side}
        row |= {f"{phase} s": median(step["seconds"][phase] for step in warm) for phase in PHASES}
        row["fastest step s"] = min(step["seconds"]["step"] for step in warm)
        row["processor s"] = median(step["processor"] for step in warm)
        row["tokens"] = warm[-1]["tokens"]
        row["first steps s"] = ", ".join(f"{step['seconds']['step']:.2f}" for step in result["steps"][:warmup])
        rows.append(row)
    mine, theirs = ([step["seconds"]["step"] for step in found[side]["steps"][warmup:]] for side in SIDES)
    ratios = sorted(b / a for a, b in zip(mine, theirs, strict=True))
    rows[0] |= {
        "x TRL": median(ratios),
        "x TRL, middle half of the rounds": f"{ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f}",
        "x TRL by processor": rows[1]["processor s"] / rows[0]["processor s"],
    }
    return rows


def our_shares(result: dict[str, Any], warmup: int) -> dict[str, Any]:
    warm = result["steps"][warmup:]
    shares = [step["outside"] for step in warm]
    row = {f"{p} %": 100 * median(s["seconds"][p] / s["seconds"]["step"] for s in warm) for p in ("rollout", "update")}
    return row | {"outside %": 100 * median(shares), "outside %, largest": 100 * max(shares)}


def notes(found: dict[str, dict[str, Any]]) -> str:
    from importlib.metadata import version

    compiled = ", ".join(f"{side} {result['steps'][-1]['compiled']}" for side, result in found.items())
    assert __doc__ is not None
    return (
        " ".join(__doc__.split("\n\n")[2].split())
        + f"\n\nTRL {version('trl')}, transformers {version('transformers')}; "
        + f"{found['ours']['begun']['threads']} threads a side; TORCHDYNAMO_DISABLE "
        + f"{os.environ.get('TORCHDYNAMO_DISABLE', 'not set')}, frames compiled: {compiled}."
    )


def median(values: Any) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
