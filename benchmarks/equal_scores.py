"""What a group of equal rewards gets: it should be exactly 0, because nobody did better than anybody.

    python benchmarks/equal_scores.py               print the table
    python benchmarks/equal_scores.py --save        and write it to benchmarks/results/

The other systems' formulas are written down here from their released code, in its dtype (float32) and with its order
of operations, for one group of eight answers on a CPU. The cause is the same in all: the float32 mean of eight equal
numbers is one rounding step off, and dividing that step by a standard deviation made of the same step leaves a number
near 1. Rewards that binary fractions hold exactly (0, 1, 0.5) hide it.

The second table gives the same formulas scores that differ: how far is the result from the same formula in float64?
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor

from groupwise.advantages import CONVENTIONS, advantages_from_scores, compute_grpo_outcome_advantage

RESULTS = Path(__file__).parent / "results"
REWARDS = (0.1, 0.35, 0.7, 10.1, 100.1)
ANSWERS = 8


def verl(rewards: Tensor) -> Tensor:
    """verl 0.9.1, `grpo`: mean and sample deviation of a stack of the group's scores, 1e-6 added to the latter."""
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6)


def verl_vectorized(rewards: Tensor) -> Tensor:
    """verl 0.9.1, `grpo_vectorized`: sums scattered by group number; the variance of the centred scores over n - 1."""
    group = torch.zeros(len(rewards), dtype=torch.int64)
    mean = rewards.new_zeros(1).index_add(0, group, rewards) / len(rewards)
    centred = rewards - mean[group]
    variance = rewards.new_zeros(1).index_add(0, group, centred.square()) / (len(rewards) - 1)
    return centred / (variance.sqrt()[group] + 1e-6)


def openrlhf(rewards: Tensor) -> Tensor:
    """OpenRLHF 0.11.2, `group_norm`: rows of a table, 1e-9 added to the deviation."""
    table = rewards[None]
    return ((table - table.mean(-1, keepdim=True)) / (table.std(-1, keepdim=True) + 1e-9))[0]


def slime(rewards: Tensor) -> Tensor:
    """slime, `grpo`: centred first, then divided by the deviation of the centred scores plus 1e-6."""
    centred = rewards[None] - rewards[None].mean(-1, keepdim=True)
    return (centred / (centred.std(-1, keepdim=True) + 1e-6))[0]


def trl(rewards: Tensor) -> Tensor:
    """TRL 1.16.0, `scale_rewards="group"`: means and deviations that skip NaN, 1e-4 added to the latter."""
    table = rewards[None]
    return ((table - table.nanmean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4))[0]


def trl_sees_it(rewards: Tensor) -> bool:
    """TRL's flag for groups without a signal (`frac_reward_zero_std`): is the deviation close to 0?"""
    std = rewards.std()
    return bool(torch.isclose(std, torch.zeros_like(std)))


PEERS: dict[str, Callable[[Tensor], Tensor]] = {
    "verl grpo": verl,
    "verl grpo_vectorized": verl_vectorized,
    "OpenRLHF": openrlhf,
    "slime": slime,
    "TRL": trl,
}


def ours(rewards: Tensor) -> float:
    """The largest advantage under any of our conventions."""
    found = [
        advantages_from_scores(rewards, ["prompt"] * len(rewards), convention=name).abs().max() for name in CONVENTIONS
    ]
    return float(torch.stack(found).max())


def rows() -> list[str]:
    lines = [f"| reward of all {ANSWERS} | Groupwise | {' | '.join(PEERS)} | TRL flags the group |"]
    lines.append("|---" * (len(PEERS) + 3) + "|")
    for reward in REWARDS:
        rewards = torch.full((ANSWERS,), reward)
        cells = [f"{ours(rewards):g}", *(f"{float(peer(rewards).abs().max()):.2g}" for peer in PEERS.values())]
        lines.append(f"| {reward} | {' | '.join(cells)} | {'yes' if trl_sees_it(rewards) else 'no'} |")
    return lines


def distance_rows() -> list[str]:
    cases = {
        "0, 1, 2, 3 (float32)": torch.tensor([0.0, 1, 2, 3]),
        "10000000 + 0, 1, 2, 3 (float32)": torch.tensor([0.0, 1, 2, 3]) + 1e7,
        "256, 256, 258, 260 (bfloat16)": torch.tensor([256, 256, 258, 260], dtype=torch.bfloat16),
    }
    lines = [f"| scores | Groupwise | {' | '.join(PEERS)} |", "|---" * (len(PEERS) + 2) + "|"]
    for name, scores in cases.items():
        exact = verl(scores.double())
        mine = compute_grpo_outcome_advantage(scores[:, None], torch.ones(len(scores), 1), ["prompt"] * len(scores))[0]
        gaps = [peer(_as_taken(label, scores)).double() - peer(scores.double()) for label, peer in PEERS.items()]
        cells = [f"{float(gap.abs().max()):.1e}" for gap in (mine[:, 0] - exact, *gaps)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _as_taken(peer: str, scores: Tensor) -> Tensor:
    """verl's `grpo` alone computes in the dtype of the rewards; the others, like TRL's reward table, in float32."""
    return scores if peer == "verl grpo" else scores.float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/<date>-equal-scores.md")
    save = parser.parse_args().save
    torch.set_num_threads(1)
    text = "\n".join(
        [
            f"# Advantage of a group whose rewards are all equal, {date.today().isoformat()}",
            "",
            f"`python benchmarks/equal_scores.py --save`, torch {torch.__version__}, {platform.machine()}, float32.",
            "The largest absolute advantage in the group; exactly 0 is right. Groupwise: the largest over all its",
            "conventions. The others: their formulas, written down in the script.",
            "",
            *rows(),
            "",
            "The largest distance from the same formula in float64, for one group of four. Groupwise's is that of",
            "rounding the result to float32.",
            "",
            *distance_rows(),
            "",
        ]
    )
    print(text)
    if save:
        (RESULTS / f"{date.today().isoformat()}-equal-scores.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
