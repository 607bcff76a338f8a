"""Random answers as the oracles read them, and the same packed as loss inputs."""

from __future__ import annotations

from random import Random

import torch

from groupwise.objectives import LossInputs, Totals
from oracles.objectives import Answer

MAX_LENGTH = 16


def random_answers(seed: int, spread: float = 0.4, num_answers: int = 7) -> list[Answer]:
    """Answers of uneven length to a few prompts, the third without a token; no log-ratio close to a bound's kink."""
    chance = Random(seed)
    answers = []
    for i in range(num_answers):
        length = 0 if i == 2 else chance.randint(1, 6)
        old = [-3 * chance.random() - 0.05 for _ in range(length)]
        lp = [-abs(value + chance.gauss(0, spread)) - 0.01 for value in old]
        selected = [chance.random() < 0.3 for _ in range(length)]
        advantage = 0.0 if i == 5 else chance.gauss(0, 1)
        answers.append(Answer(chance.randint(0, 2), advantage, lp, list(lp), old, selected))
    return answers


def pack(answers: list[Answer], dtype: torch.dtype = torch.float64, **changes: object) -> LossInputs:
    def flat(name):
        return torch.tensor([value for answer in answers for value in getattr(answer, name)], dtype=dtype)

    ids = [i for i, answer in enumerate(answers) for _ in answer.lp]
    fields = {
        "log_probs": flat("lp").requires_grad_(),
        "old_log_probs": flat("old"),
        "advantages": torch.tensor([answer.advantage for answer in answers], dtype=dtype),
        "sequence_ids": torch.tensor(ids, dtype=torch.int64),
        "prompt_ids": torch.tensor([answer.prompt for answer in answers], dtype=torch.int64),
        "ref_log_probs": flat("old") - 0.1,
        "entropy": -flat("old"),
        "selected": flat("selected").bool(),
    }
    return LossInputs(**fields | changes)


def totals_of(answers: list[Answer]) -> Totals:
    return Totals.count([len(a.lp) for a in answers], [a.prompt for a in answers], MAX_LENGTH)
