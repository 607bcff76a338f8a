"""Is the shrinkage baseline closer to the truth than the plain group mean? Simulated prompts, true success rates known.

    python benchmarks/shrinkage.py                  print the tables
    python benchmarks/shrinkage.py --save           and write them to benchmarks/results/

The error of an advantage is its distance from score - true success rate of the prompt. Every estimator judges the
same scores, through the functions of the package. A ratio below 1 means less squared error than the plain group mean
(`dr_grpo`). The second table checks the direction: the expected policy gradient of each prompt against the true one.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from itertools import chain, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from groupwise.advantages import OUTCOME_ESTIMATORS, Groups

RESULTS = Path(__file__).parent / "results"
ANSWERS = (2, 3, 4, 8, 16)
BATCHES = {4: 800, 8: 800, 16: 400, 64: 200, 256: 100}
"""Prompts per batch, and how many batches are simulated: the smaller the batch, the noisier its ratio."""

Shape = tuple[int, int]
Draw = Callable[[Shape, int, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def right_or_wrong(rates: Callable[[Shape, np.random.Generator], np.ndarray]) -> Draw:
    """Scores 0 and 1; the truth is the prompt's success rate."""

    def draw(shape: Shape, answers: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        truth = rates(shape, random)
        return truth, (random.random((*shape, answers)) < truth[..., None]).astype(float)

    return draw


def beta(a: float, b: float) -> Draw:
    return right_or_wrong(lambda shape, random: random.beta(a, b, shape))


def two_points(low: float, high: float) -> Draw:
    return right_or_wrong(lambda shape, random: np.where(random.random(shape) < 0.5, low, high))


def gaussian(shape: Shape, answers: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """True means N(0, 1), scores N(mean, 1): a reward model's scale rather than right or wrong."""
    truth = random.standard_normal(shape)
    return truth, truth[..., None] + random.standard_normal((*shape, answers))


FAMILIES: dict[str, Draw] = {
    "Beta(1, 1)": beta(1, 1),
    "Beta(0.5, 0.5)": beta(0.5, 0.5),
    "Beta(5, 2)": beta(5, 2),
    "Beta(0.2, 0.2)": beta(0.2, 0.2),
    "Gaussian": gaussian,
    "0.02 or 0.98": two_points(0.02, 0.98),
}


REPORT = """\
# Shrinkage against the plain group mean, {date}

`python benchmarks/shrinkage.py --save`, {versions}.

The squared error of the advantage as a ratio to the plain group mean's, ± one standard error over the batches. `!`
marks a ratio above 1 by more than two standard errors, "even" one within two.

- n = 2..4: {small}.
- All n: {all}.
- Families with a cell above 1: {where}. The highest ratio of all is {worst}.
- With the scatter of the group means over G - 1 instead of G - 3, all n: {unbiased}; the highest is {unbiased_worst}.

{summary}

## The direction

Four prompts, two answers each drawn from a softmax over three possible ones; every possible batch is summed with its
probability. The lowest cosine over the prompts with the true policy gradient, and the length relative to it. One
length for all prompts is a learning rate; different lengths weigh the prompts differently.

| scores | estimator | 1 - cosine | relative length |
|---|---|---|---|
{directions}

## Every cell

{details}
"""


@dataclass(frozen=True)
class Cell:
    """One row of the table. Ratios are to the squared error of the plain group mean, se their standard errors."""

    family: str
    prompts: int
    answers: int
    batches: int
    mean_error: float
    loo_ratio: float
    loo_se: float
    shrinkage_ratio: float
    shrinkage_se: float
    unbiased_ratio: float
    unbiased_se: float

    @property
    def verdict(self) -> str:
        return verdict(self.shrinkage_ratio, self.shrinkage_se)


def verdict(ratio: float, se: float) -> str:
    if abs(ratio - 1) <= 2 * se:
        return "even"
    return "lower" if ratio < 1 else "HIGHER"


def squared_errors(estimator: str, scores: Tensor, truth: Tensor) -> Tensor:
    """The mean squared error of each batch: scores [batches, prompts, answers], truth [batches, prompts]."""
    batches, prompts, answers = scores.shape
    target = scores - truth[..., None]
    equation = OUTCOME_ESTIMATORS[estimator]
    if estimator == "shrinkage":  # looks at the whole batch: one call per batch
        groups = Groups.of(torch.arange(prompts).repeat_interleave(answers))
        advantages = torch.stack([equation(batch.reshape(-1), groups) for batch in scores])
    else:  # looks at its group alone: all batches in one call
        groups = Groups.of(torch.arange(batches * prompts).repeat_interleave(answers))
        advantages = equation(scores.reshape(-1), groups)
    return (advantages.reshape(scores.shape) - target).square().mean(dim=(1, 2))


def unbiased_errors(scores: Tensor, truth: Tensor) -> Tensor:
    """The same of shrinkage whose scatter of group means is divided by G - 1 instead of G - 3."""
    means = scores.mean(dim=2)
    centre = means.mean(dim=1, keepdim=True)
    noise = scores.var(dim=2).mean(dim=1, keepdim=True) / scores.shape[2]
    pull = (noise / means.var(dim=1, keepdim=True)).nan_to_num(nan=0.0).clamp_max(1.0)
    return (means + pull * (centre - means) - truth).square().mean(dim=1)


def ratio(errors: Tensor, reference: Tensor) -> tuple[float, float]:
    """The ratio of two means over the same batches, and its standard error (delta method)."""
    value = errors.mean() / reference.mean()
    residual = errors - value * reference
    return float(value), float(residual.std() / reference.mean() / len(errors) ** 0.5)


def simulate(family: str, prompts: int, answers: int, seed: int) -> Cell:
    batches = BATCHES[prompts]
    drawn = FAMILIES[family]((batches, prompts), answers, np.random.default_rng(seed))
    truth, scores = (torch.from_numpy(values) for values in drawn)
    plain, loo, shrunk = (squared_errors(name, scores, truth) for name in ("dr_grpo", "rloo", "shrinkage"))
    ratios = [ratio(errors, plain) for errors in (loo, shrunk, unbiased_errors(scores, truth))]
    return Cell(family, prompts, answers, batches, float(plain.mean()), *chain(*ratios))


@dataclass(frozen=True)
class Direction:
    """Cosine (lowest over the prompts) and length of an expected policy gradient, both against the true one."""

    setting: str
    estimator: str
    cosine: float
    shortest: float
    longest: float


def direction(setting: str, rewards: Tensor, logits: Tensor, estimator: str, answers: int = 2) -> Direction:
    """The expected gradient of each prompt, summed over every batch that can happen: no sampling error.

    Prompt p answers with one of the columns of `rewards[p]`, drawn from softmax(logits[p]).
    """
    prompts, choices = rewards.shape
    policy = logits.softmax(dim=1)
    groups = Groups.of(torch.arange(prompts).repeat_interleave(answers))
    picks = torch.tensor(list(product(range(choices), repeat=prompts * answers))).view(-1, prompts, answers)
    owner = torch.arange(prompts)[:, None].expand(prompts, answers)
    chance = policy[owner, picks].flatten(1).prod(dim=1)
    scores = rewards[owner, picks].flatten(1)
    advantages = torch.stack([OUTCOME_ESTIMATORS[estimator](row, groups) for row in scores]).view_as(picks)
    log_prob_gradient = torch.eye(choices, dtype=torch.float64)[picks] - policy[:, None]
    per_batch = (advantages[..., None] * log_prob_gradient).mean(dim=2)
    found = (chance[:, None, None] * per_batch).sum(dim=0)
    true = policy * (rewards - (policy * rewards).sum(dim=1, keepdim=True))
    cosine = torch.nn.functional.cosine_similarity(found, true, dim=1)
    lengths = (found * true).sum(dim=1) / true.square().sum(dim=1)
    return Direction(setting, estimator, float(cosine.min()), float(lengths.min()), float(lengths.max()))


def directions() -> list[Direction]:
    """Four prompts, two answers each, three possible answers: 3^8 batches, all of them."""
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    settings = {
        "right or wrong": torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 1]]).double(),
        "graded": torch.tensor([[1.0, 0.4, 0.1], [0.2, 0.9, 0], [0.7, 0, 0.5], [0, 0.3, 1]]).double(),
    }
    return [
        direction(setting, rewards, logits, estimator)
        for setting, rewards in settings.items()
        for estimator in ("dr_grpo", "rloo", "shrinkage")
    ]


def summary(cells: list[Cell]) -> list[str]:
    lines = ["| success rates | prompts | n = 2 | n = 3 | n = 4 | n = 8 | n = 16 |", "|---|---|---|---|---|---|---|"]
    for family, prompts in product(FAMILIES, BATCHES):
        row = [c for c in cells if (c.family, c.prompts) == (family, prompts)]
        shown = [f"{c.shrinkage_ratio:.3f} ± {c.shrinkage_se:.3f}" + " !" * (c.verdict == "HIGHER") for c in row]
        lines.append(f"| {family} | {prompts} | {' | '.join(shown)} |")
    return lines


def details(cells: list[Cell]) -> list[str]:
    lines = [
        "| success rates | prompts | n | batches | group mean: error | leave-one-out | with G - 1 | shrinkage | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for c in cells:
        pairs = (c.loo_ratio, c.loo_se), (c.unbiased_ratio, c.unbiased_se), (c.shrinkage_ratio, c.shrinkage_se)
        ratios = " | ".join(f"{value:.3f} ± {se:.3f}" for value, se in pairs)
        size = f"{c.prompts} | {c.answers} | {c.batches}"
        lines.append(f"| {c.family} | {size} | {c.mean_error:.5f} | {ratios} | {c.verdict} |")
    return lines


def tally(verdicts: list[str]) -> str:
    counts = Counter(verdicts)
    return (
        f"lower in {counts['lower']} of {len(verdicts)} cells, even in {counts['even']}, higher in {counts['HIGHER']}"
    )


def report(cells: list[Cell], found: list[Direction]) -> str:
    higher = [c for c in cells if c.verdict == "HIGHER"]
    rows = [
        f"| {d.setting} | {d.estimator} | {abs(1 - d.cosine):.1e} | {d.shortest:.3f} to {d.longest:.3f} |"
        for d in found
    ]
    return REPORT.format(
        date=date.today().isoformat(),
        versions=f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()} CPU",
        small=tally([c.verdict for c in cells if c.answers <= 4]),
        all=tally([c.verdict for c in cells]),
        where=", ".join(sorted({c.family for c in higher})) or "none",
        worst=f"{max(c.shrinkage_ratio for c in cells):.3f}",
        unbiased=tally([verdict(c.unbiased_ratio, c.unbiased_se) for c in cells]),
        unbiased_worst=f"{max(c.unbiased_ratio for c in cells):.3f}",
        summary="\n".join(summary(cells)),
        directions="\n".join(rows),
        details="\n".join(details(cells)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/<date>-shrinkage.md and .json")
    save = parser.parse_args().save
    torch.set_num_threads(1)
    start = time.perf_counter()
    settings = list(product(FAMILIES, BATCHES, ANSWERS))
    cells = [simulate(*setting, seed=seed) for seed, setting in enumerate(settings)]
    found = directions()
    text = report(cells, found)
    print(text)
    print(f"{time.perf_counter() - start:.0f} s")
    if save:
        stem = RESULTS / f"{date.today().isoformat()}-shrinkage"
        stem.with_suffix(".md").write_text(text, encoding="utf-8")
        data = {"cells": [asdict(c) for c in cells], "directions": [asdict(d) for d in found]}
        stem.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
