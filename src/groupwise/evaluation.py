"""How good is the model on questions it was not trained on? Greedy accuracy, mean@n, unbiased pass@k, maj@n."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import comb

from groupwise.types import Completion, Engine, Group, Prompt, RewardFunction, Sampling

# An answer is right when it has the full score of the built-in tasks.
RIGHT = 1.0
EVALUATION_STEP = 1 << 40
"""Far from every training step, so that evaluation draws random numbers of its own, the same every time."""


def evaluate(
    engine: Engine, prompts: Sequence[Prompt], reward: RewardFunction, sampling: Sampling, num_samples: int
) -> dict[str, float]:
    """`accuracy` of the greedy answer, and over `num_samples` sampled ones mean@n, pass@k for k = 1, 2, 4, ...,
    n and maj@n. Where the reward of greedy answers failed, `failed` is their share. Nothing where nothing is asked."""
    if not prompts:
        return {}
    greedy = reward(engine.generate(prompts, 1, replace(sampling, temperature=0.0)))
    found = {"accuracy": mean([float(is_right(group.completions[0])) for group in greedy])}
    if failed := mean([float(group.completions[0].failure is not None) for group in greedy]):
        found["failed"] = failed
    if num_samples < 2:
        return found
    sampled = reward(engine.generate(prompts, num_samples, sampling))
    found[f"mean@{num_samples}"] = mean([score_of(answer) for group in sampled for answer in group.completions])
    k = 1
    while k <= num_samples:
        found[f"pass@{k}"] = mean([pass_at_k(num_samples, num_right(group), k) for group in sampled])
        k *= 2
    found[f"maj@{num_samples}"] = mean([float(is_right(majority(group))) for group in sampled])
    return found


def pass_at_k(n: int, right: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of the n answers drawn without replacement hold a right one.

    Unbiased for the pass@k of the model, https://arxiv.org/abs/2107.03374.
    """
    return 1.0 - comb(n - right, k) / comb(n, k)


def majority(group: Group) -> Completion:
    """The first answer with the most common text."""
    text, _ = Counter(answer.text for answer in group.completions).most_common(1)[0]
    return next(answer for answer in group.completions if answer.text == text)


def num_right(group: Group) -> int:
    return sum(is_right(answer) for answer in group.completions)


def is_right(answer: Completion) -> bool:
    """By the part `acc`, where the reward function names one as verl's do; otherwise by the score."""
    return answer.score is not None and answer.parts.get("acc", answer.score) >= RIGHT


def score_of(answer: Completion) -> float:
    """An answer that failed counts 0 here: it did not answer the question."""
    return 0.0 if answer.score is None else answer.score


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
