"""The two sides of `step_gpu.py`: a GRPO step of ours and of TRL's GRPOTrainer, timed phase by phase."""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

LEARNING_RATE = 1e-6


def make_model(shape: dict[str, int]) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    torch.manual_seed(0)
    vocabulary = {c: i for i, c in enumerate(["<pad>", "<eos>"] + [chr(i) for i in range(32, 127)])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", padding_side="left")
    config = Qwen3Config(**shape, tie_word_embeddings=True, eos_token_id=1, pad_token_id=0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    return model, tokenizer


def make_prompts(arguments: argparse.Namespace) -> list[str]:
    letters = random.Random(0)
    width = arguments.prompt_tokens[0]
    return ["".join(letters.choice("abcdefghij") for _ in range(width)) for _ in range(256)]


def ours(arguments: argparse.Namespace, shape: dict[str, int]) -> dict[str, Any]:
    from groupwise.config import AlgoConfig, RunConfig
    from groupwise.judging import Judge
    from groupwise.overrides import build
    from groupwise.parts import loss_of_step
    from groupwise.policy.load import wrap
    from groupwise.rollout import EmbeddedEngine
    from groupwise.types import Prompt, Sampling, Task
    from groupwise.update import Updater

    model, tokenizer = make_model(shape)
    policy = wrap(model, tokenizer, compiles=True)
    config: RunConfig = build(
        RunConfig,
        {
            "data": {"train_batch_size": arguments.prompts, "max_response_length": arguments.answer_tokens},
            "rollout": {"n": arguments.n},
            "actor": {"micro_batch_tokens": arguments.micro_batch_tokens, "optim": {"lr": LEARNING_RATE}},
        },
    )
    engine = EmbeddedEngine(policy, arguments.prompts * arguments.n)
    updater = Updater(policy, config.actor, loss_of_step(config, lambda: 0.0), total_steps=100)
    judge = Judge(AlgoConfig(adv_estimator="grpo"))
    texts = make_prompts(arguments)
    seconds: dict[str, list[float]] = {"rollout": [], "judge": [], "update": [], "step": []}
    notes: dict[str, Any] = {}
    torch.cuda.reset_peak_memory_stats()
    for step in range(arguments.steps):
        chosen = [texts[(step * arguments.prompts + place) % len(texts)] for place in range(arguments.prompts)]
        marks = [clock()]
        prompts = [
            Prompt(f"{step}-{place}", Task(str(place), text, ""), policy.encode(Task(str(place), text, "")))
            for place, text in enumerate(chosen)
        ]
        groups = engine.generate(prompts, arguments.n, Sampling(max_tokens=arguments.answer_tokens, step=step))
        marks.append(clock())
        groups = [
            type(group)(
                group.prompt,
                tuple(answer.judged(len(set(answer.text)) / 50, {}) for answer in group.completions),
            )
            for group in groups
        ]
        judgement = judge(groups)
        marks.append(clock())
        metrics = updater.step(groups, judgement.advantages)
        marks.append(clock())
        for phase, start, end in zip(("rollout", "judge", "update"), marks, marks[1:], strict=False):
            seconds[phase].append(end - start)
        seconds["step"].append(marks[-1] - marks[0])
        notes = {name: metrics[name] for name in ("rollout/log_prob_gap", "rollout/log_prob_gap/max", "grad_norm")}
        notes["tokens"] = sum(len(answer.token_ids) for group in groups for answer in group.completions)
    return {"seconds": seconds, "peak": torch.cuda.max_memory_allocated(), "notes": notes}


def trl(arguments: argparse.Namespace, shape: dict[str, int]) -> dict[str, Any]:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = make_model(shape)
    config = GRPOConfig(
        output_dir="trl-out", per_device_train_batch_size=arguments.prompts * arguments.n, num_generations=arguments.n,
        max_completion_length=arguments.answer_tokens, max_steps=arguments.steps, logging_steps=1, report_to=[],
        bf16=True, save_strategy="no", beta=0.0, gradient_checkpointing=True, temperature=1.0, steps_per_generation=1,
        learning_rate=LEARNING_RATE, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        args=config,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [len(set(text)) / 50 for text in completions],
        train_dataset=Dataset.from_list([{"prompt": text} for text in make_prompts(arguments)]),
    )
    spent: dict[str, list[float]] = {}

    def timed(name: str) -> None:
        inner = getattr(trainer, name)

        def wrapper(*positional: Any, **named: Any) -> Any:
            started = clock()
            result = inner(*positional, **named)
            spent.setdefault(name, []).append(clock() - started)
            return result

        setattr(trainer, name, wrapper)

    for name in ("_generate", "_generate_and_score_completions", "training_step"):
        timed(name)
    torch.cuda.reset_peak_memory_stats()
    trainer.train()
    prepared, whole = spent["_generate_and_score_completions"], spent["training_step"]
    seconds = {
        "rollout": spent["_generate"],
        "judge": [a - b for a, b in zip(prepared, spent["_generate"], strict=True)],
        "update": [a - b for a, b in zip(whole, prepared, strict=True)],
        "step": whole,
    }
    return {"seconds": seconds, "peak": torch.cuda.max_memory_allocated(), "notes": {}}


def clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()
