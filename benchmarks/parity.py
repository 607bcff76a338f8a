"""Every estimator of verl 0.9.1 beside ours: how far apart are they, and where do they part on purpose?

    make test-integrations && .venv-integrations/verl/bin/python benchmarks/parity.py

The batches are those of tests/integrations/verl: uneven groups in shuffled rows, holes and pads in the mask, answers
alone in their group where both have a rule for them, rewards that float32 adds without error.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import publish

from groupwise import advantages
from groupwise.errors import GroupwiseError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from integrations.verl.batches import CASES, EXACT32, GDPO_KEYS, call, random_batch

NOTES = (
    "Absolute differences at the response tokens, the largest of advantages and returns over all batches. With float64 "
    "rewards and masks, what is left is verl's own float32 (statistics of grpo_vectorized, reward parts of gdpo, the "
    "factor of gpg, 1 + epsilon of a lone answer in grpo), the 1e-8 it adds to the number of tokens it whitens over, "
    "and where the epsilon of the token baselines stands. With float32, rounding. What is allowed is what the tests "
    "allow, relative where an advantage is larger than 1."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--date", help="of the result, 2026-11-30; today without it")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    tables = {
        f"Largest difference over {options.batches} random batches": [parity(case, options.batches) for case in CASES],
        "Where ours differs on purpose": differences(),
    }
    publish("parity", "Parity with verl 0.9.1", tables, date=options.date, notes=NOTES)


def parity(case: Any, num_batches: int) -> dict[str, Any]:
    row = {"estimator": case.name, "verl's function": f"`{case.function}`"}
    for dtype in (torch.float64, torch.float32):
        largest = max(difference(case, seed, dtype) for seed in range(num_batches))
        name = str(dtype).removeprefix("torch.")
        row |= {
            name: f"{largest:.1e}",
            f"allowed, {name}": f"{case.exact64 if dtype == torch.float64 else EXACT32:.0e}",
        }
    return row


def difference(case: Any, seed: int, dtype: torch.dtype) -> float:
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo import core_algos

    config = AlgoConfig(gamma=0.9, gdpo_reward_keys=GDPO_KEYS)
    fields = random_batch(seed, dtype, singletons=case.singletons) | {"config": config}
    counted = fields["response_mask"].bool()
    theirs = call(getattr(core_algos, case.function), fields)
    ours = call(getattr(advantages, case.function), fields)
    return max(float((a - b)[counted].abs().max()) for a, b in zip(ours, theirs, strict=True))


def differences() -> list[dict[str, str]]:
    """The cases of test_differences.py that fit on a line, computed here and now."""
    two, nan, empty = answers([1.0, 0.0]), answers([float("nan"), 1.0, 1.0, 0.0], list("aabb")), answers([1.0, 0.0])
    empty["response_mask"] = torch.zeros(2, 1)
    pad = {"token_level_rewards": torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "response_mask": torch.eye(2)[[0, 0]]}
    pad |= {"values": torch.tensor([[0.0, 9.0]] * 2), "gamma": 1.0, "lam": 1.0}
    cases = [
        ("eight equal scores of 100.1", "grpo", answers([100.1] * 8)),
        ("eight equal scores of 100.1", "grpo_vectorized", answers([100.1] * 8)),
        ("scores 3 alone, 1 and 0 together", "rloo", answers([3.0, 1.0, 0.0], ["a", "b", "b"])),
        ("the same: two rules in verl, one in ours", "rloo_vectorized", answers([3.0, 1.0, 0.0], ["a", "b", "b"])),
        ("second token masked, with value 9", "gae", pad),
        ("scores NaN, 1 of a; 1, 0 of b", "reinforce_plus_plus_baseline", nan),
        ("answers without a token", "opo", empty),
        ("whitening over no token", "gdpo", empty),
        ("no config", "grpo_passk", two),
        ("no config", "reinforce_plus_plus", two),
        ("integer rewards 3, 1, 0", "grpo", answers([3, 1, 0])),
        ("bfloat16 rewards 256, 256, 258, 260", "grpo", answers([256.0, 256.0, 258.0, 260.0], dtype=torch.bfloat16)),
        ("alpha=5 for scores 1, 0", "gpg", two | {"alpha": 5.0}),
        ("labels in a tensor", "grpo", two | {"index": torch.tensor([7, 7])}),
        ("labels -5, -5", "grpo_vectorized", two | {"index": np.array([-5, -5])}),
        ("three labels for two answers", "grpo", two | {"index": np.array(["a", "a", "b"])}),
    ]
    return [side_by_side(what, name, fields) for what, name, fields in cases]


def answers(scores: list[Any], index: list[str] | None = None, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """Answers of one token, all of one prompt unless told otherwise."""
    rewards = torch.tensor(scores, dtype=dtype)[:, None]
    return {
        "token_level_rewards": rewards,
        "response_mask": torch.ones(len(scores), 1),
        "index": np.array(index or ["a"] * len(scores), dtype=object),
        "config": None,
    }


def side_by_side(what: str, name: str, fields: dict[str, Any]) -> dict[str, str]:
    from verl.trainer.ppo import core_algos

    function = {case.name: case.function for case in CASES}[name]
    theirs, ours = (outcome(getattr(module, function), fields) for module in (core_algos, advantages))
    return {"case": what, "estimator": name, "verl's advantages": theirs, "ours": ours}


def outcome(function: Any, fields: dict[str, Any]) -> str:
    """The advantages, answers apart by commas and tokens by blanks, or the error."""
    try:
        advantages_of_tokens, _ = call(function, fields)
    except (ArithmeticError, AssertionError, GroupwiseError, LookupError, RuntimeError, ValueError) as error:
        return type(error).__name__
    rows = [" ".join(f"{value:.4g}" for value in row) for row in advantages_of_tokens.tolist()]
    return f"{rows[0]} in all {len(rows)}" if len(rows) > 4 and len(set(rows)) == 1 else ", ".join(rows)


if __name__ == "__main__":
    main()
