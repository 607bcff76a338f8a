"""GRPO in one file: a model learns to add, and every number is the one that `groupwise train` writes.

    python examples/one_file_grpo.py [steps]

The training system samples with caches that are refilled, computes each prompt once for its whole group and cuts
batches into micro-batches. Here is the same method without any of that, as plainly as transformers allows. Taken from
the package: the advantages, the objective, the questions, and the random numbers, so that both draw the same answers.
A test runs both and compares.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from groupwise.advantages import advantages_from_scores
from groupwise.config import RunConfig
from groupwise.objectives import LossInputs, Totals, objective
from groupwise.rollout.randomness import uniforms
from groupwise.tasks import GeneratedTasks, held_out_sample
from groupwise.types import Task

EVALUATE_EVERY = 10


@dataclass
class Answers:
    """All answers of a step, a row each, group after group: [B, prompt + answer] tokens, prompts padded on the left."""

    tokens: Tensor
    mask: Tensor
    """1 where a token is one, of the prompt or of the answer with its end."""
    width: int
    """Columns of the prompt."""

    @property
    def lengths(self) -> Tensor:
        return self.mask[:, self.width :].sum(1)


class Grpo:
    """A policy, its optimiser, and one step of GRPO."""

    def __init__(self, config: RunConfig) -> None:
        folder = str(files("groupwise") / "assets" / "embedded")
        self.config = config
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.end = self.tokenizer.eos_token_id
        optim = config.actor.optim
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay
        )
        self.questions = GeneratedTasks(config.data.task, config.data.difficulty, config.trainer.seed)

    def step(self, number: int) -> dict[str, float]:
        """Ask, answer, judge, learn: step 1, 2, 3, ..."""
        config, batch = self.config, self.config.data.train_batch_size
        tasks = [self.questions[(number - 1) * batch + place] for place in range(batch)]
        n = config.rollout.n

        answers = self.answer(tasks, n, number, config.rollout.temperature)
        scores = self.score(answers, [task for task in tasks for _ in range(n)])
        groups = torch.arange(batch).repeat_interleave(n)
        advantages = advantages_from_scores(scores, groups, config.algorithm.adv_estimator)
        loss, norm = self.learn(answers, advantages, groups, number)

        signal = advantages.view(batch, n).any(1)
        return {
            "step": number,
            "reward/mean": scores.mean().item(),
            "groups/no_signal": 1 - signal.double().mean().item(),
            "response_length/mean": answers.lengths.double().mean().item(),
            "loss": loss,
            "grad_norm": norm,
        }

    @torch.no_grad()
    def answer(self, tasks: list[Task], n: int, step: int, temperature: float) -> Answers:
        """n answers to each question, token by token; temperature 0 takes the likeliest token."""
        limit = self.config.data.max_response_length
        prompts = [torch.tensor(self.tokenizer(task.prompt)["input_ids"]) for task in tasks for _ in range(n)]
        tokens = pad_sequence(prompts, batch_first=True, padding_side="left", padding_value=self.end)
        ones = [torch.ones_like(prompt) for prompt in prompts]
        mask = pad_sequence(ones, batch_first=True, padding_side="left")
        rows = torch.arange(len(prompts))
        numbers = uniforms(rows // n, rows % n, limit, self.config.trainer.seed, step)

        width, cache, fed = tokens.shape[1], None, tokens
        alive = torch.ones(len(prompts), dtype=torch.long)
        for column in range(limit):
            positions = mask.cumsum(1) - 1
            output = self.model(
                input_ids=fed,
                attention_mask=mask,
                position_ids=positions[:, -fed.shape[1] :].clamp_min(0),
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            fed = draw(output.logits[:, -1], numbers[:, column], temperature)[:, None]
            tokens, mask = torch.cat([tokens, fed], 1), torch.cat([mask, alive[:, None]], 1)
            alive = alive * (fed[:, 0] != self.end)
            if not alive.any():
                break
        return Answers(tokens, mask, width)

    def score(self, answers: Answers, tasks: list[Task]) -> Tensor:
        """1 for the right answer, 0 for any other."""
        texts = []
        for row, length in zip(answers.tokens, answers.lengths.tolist(), strict=True):
            told = row[answers.width : answers.width + length]
            texts.append(self.tokenizer.decode(told, skip_special_tokens=True))
        right = [text.strip() == task.answer for text, task in zip(texts, tasks, strict=True)]
        return torch.tensor(right, dtype=torch.float64)

    def learn(self, answers: Answers, advantages: Tensor, groups: Tensor, number: int) -> tuple[float, float]:
        """One optimiser step; the loss, and the gradient's norm before clipping."""
        config = self.config
        rate = learning_rate(config, number)
        lengths = answers.lengths
        inputs = LossInputs(
            log_probs=self.log_probs(answers),
            old_log_probs=None,  # one step per batch: the policy that answered is the one that learns
            advantages=advantages,
            sequence_ids=torch.arange(len(lengths)).repeat_interleave(lengths),
            prompt_ids=groups,
        )
        totals = Totals.count(lengths, groups, config.data.max_response_length)
        loss = objective(inputs, config.actor, totals).loss
        loss.backward()
        norm = clip_grad_norm_(self.model.parameters(), config.actor.grad_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item(), norm.item()

    def log_probs(self, answers: Answers) -> Tensor:
        """log pi of every token of every answer, one after another: [L]."""
        positions = (answers.mask.cumsum(1) - 1).clamp_min(0)
        logits = self.model(input_ids=answers.tokens, attention_mask=answers.mask, position_ids=positions).logits
        # A state predicts the token after it.
        logits = logits[:, answers.width - 1 : -1] / self.config.rollout.temperature
        told = answers.tokens[:, answers.width :]
        log_probs = logits.log_softmax(-1).gather(-1, told[..., None])[..., 0]
        return log_probs[answers.mask[:, answers.width :].bool()]

    def accuracy(self) -> float:
        """Share of held-out questions that the greedy answer gets right."""
        data = self.config.data
        tasks = held_out_sample(data.task, data.difficulty, data.val_size)
        return self.score(self.answer(tasks, 1, step=0, temperature=0.0), tasks).mean().item()


def draw(logits: Tensor, numbers: Tensor, temperature: float) -> Tensor:
    """The token whose stretch of the cumulative distribution holds the row's random number."""
    if temperature == 0:
        return logits.argmax(-1)
    sums = (logits.double() / temperature).softmax(-1).cumsum(-1)
    return torch.searchsorted(sums, numbers[:, None] * sums[:, -1:], right=True)[:, 0]


def learning_rate(config: RunConfig, number: int) -> float:
    """From `lr` in the first step in a straight line to `min_lr_ratio` of it in the last."""
    optim, last = config.actor.optim, config.trainer.total_training_steps
    progress = (number - 1) / max(1, last - 1)
    return optim.lr * (1 - progress * (1 - optim.min_lr_ratio))


def main(steps: int) -> None:
    logging.disable_progress_bar()
    default = RunConfig()
    grpo = Grpo(replace(default, trainer=replace(default.trainer, total_training_steps=steps)))
    print(f"step   0   accuracy {grpo.accuracy():.3f}", flush=True)
    for number in range(1, steps + 1):
        row = grpo.step(number)
        line = f"step {number:3d}   reward {row['reward/mean']:.3f}   gradient {row['grad_norm']:.3f}"
        is_due = number % EVALUATE_EVERY == 0 or number == steps
        print(line + (f"   accuracy {grpo.accuracy():.3f}" if is_due else ""), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RunConfig().trainer.total_training_steps)
