"""The learning rate of a step."""

from __future__ import annotations

import math
from collections.abc import Callable

from groupwise.config import OptimConfig
from groupwise.errors import unknown_name

_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda _progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: (1.0 + math.cos(math.pi * progress)) / 2,
}


def learning_rate(config: OptimConfig, step: int, total_steps: int) -> float:
    """The rate of step 0, 1, ..., total_steps - 1.

    It rises in equal parts over the warm-up and is `lr` in its last step; from the step after that it falls from `lr`
    to `min_lr_ratio * lr`, which is what the run's last step has.
    """
    if config.lr_scheduler_type not in _SHAPES:
        raise unknown_name("actor.optim.lr_scheduler_type", config.lr_scheduler_type, _SHAPES)
    warmup = config.lr_warmup_steps
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - 1 - warmup))
    share = _SHAPES[config.lr_scheduler_type](progress)
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * share)
