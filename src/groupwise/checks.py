"""Settings that cannot work, refused before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from groupwise.config import RunConfig
from groupwise.errors import BadValueError
from groupwise.overrides import as_dict

Rule = tuple[Callable[[Any], bool], str]

_AT_LEAST_ONE: Rule = (lambda value: value >= 1, "must be 1 or more")
_NOT_NEGATIVE: Rule = (lambda value: 0 <= value < math.inf, "must be 0 or more, and finite")
_POSITIVE: Rule = (lambda value: 0 < value < math.inf, "must be more than 0, and finite")
_SHARE: Rule = (lambda value: 0 <= value <= 1, "is a share and must be between 0 and 1")

RULES: dict[str, Rule] = {
    "data.difficulty": _AT_LEAST_ONE,
    "data.train_batch_size": _AT_LEAST_ONE,
    "data.val_size": _NOT_NEGATIVE,
    "data.val_n": _AT_LEAST_ONE,
    "data.max_prompt_length": _AT_LEAST_ONE,
    "data.max_response_length": _AT_LEAST_ONE,
    "data.max_bad_rows": _SHARE,
    "rollout.n": _AT_LEAST_ONE,
    "rollout.temperature": (
        lambda t: 0 < t < math.inf,
        "must be more than 0, and finite: greedy answers to one prompt are all the same",
    ),
    "rollout.top_p": (lambda p: 0 < p <= 1, "must be in (0, 1]; 1 keeps every token"),
    "rollout.top_k": _NOT_NEGATIVE,
    "rollout.max_num_seqs": _AT_LEAST_ONE,
    "rollout.gpu_memory_utilization": (lambda share: 0 < share < 1, "is a share and must lie between 0 and 1"),
    "algorithm.epsilon": _NOT_NEGATIVE,
    "algorithm.kl_ctrl.kl_coef": _NOT_NEGATIVE,
    "actor.loss_scale_factor": _AT_LEAST_ONE,
    "actor.kl_loss_coef": _NOT_NEGATIVE,
    "actor.ref_model_sync_steps": _AT_LEAST_ONE,
    "actor.entropy_coeff": (math.isfinite, "must be a finite number; 0 is no bonus"),
    "actor.optim.lr": _POSITIVE,
    "actor.optim.betas": (
        lambda betas: len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
        "must be two numbers from 0 to below 1, such as [0.9,0.99]",
    ),
    "actor.optim.weight_decay": _NOT_NEGATIVE,
    "actor.optim.lr_warmup_steps": _NOT_NEGATIVE,
    "actor.optim.min_lr_ratio": _SHARE,
    "actor.ppo_epochs": _AT_LEAST_ONE,
    "actor.ppo_mini_batch_size": _AT_LEAST_ONE,
    "actor.micro_batch_tokens": _AT_LEAST_ONE,
    "actor.grad_clip": _POSITIVE,
    "trainer.total_training_steps": _AT_LEAST_ONE,
    "trainer.seed": (lambda seed: 0 <= seed < 1 << 32, "must be a whole number from 0 to 4294967295"),
    "trainer.save_freq": _AT_LEAST_ONE,
    "trainer.test_freq": _AT_LEAST_ONE,
    "trainer.max_ckpt_to_keep": _AT_LEAST_ONE,
    "trainer.num_threads": _AT_LEAST_ONE,
    "trainer.max_bad_steps": _AT_LEAST_ONE,
}


# What they compare an answer with is not its siblings.
_WITHOUT_SIBLINGS = ("reinforce_plus_plus", "remax", "running_baseline")
_NOT_IN_THE_LOOP = {
    "use_pf_ppo": "it resamples the batch behind the back of the groups; leave it off",
    "rollout_correction": "the embedded engine samples with the weights that are trained; leave it out",
}
# What switches verl's section on; beside these it holds numbers.
_CORRECTIONS = ("rollout_is", "rollout_rs", "bypass_mode")


def _is_on(value: Any) -> bool:
    return any(value.get(name) for name in _CORRECTIONS) if isinstance(value, Mapping) else bool(value)


def check_ranges(config: RunConfig) -> None:
    """Raise BadValueError for the first setting out of its range, by key, value, reason and remedy."""
    settings = as_dict(config)
    for key, (allowed, reason) in RULES.items():
        value: Any = settings
        for part in key.split("."):
            value = value[part]
        if value is not None and not allowed(value):
            raise BadValueError(f"{key}={value} {reason}")


def check_config(config: RunConfig) -> None:
    """Likewise, and for settings that a run cannot learn under."""
    check_ranges(config)
    estimator = config.algorithm.adv_estimator
    if config.rollout.n == 1 and estimator not in _WITHOUT_SIBLINGS:
        raise BadValueError(
            f"rollout.n=1 must be 2 or more under algorithm.adv_estimator={estimator}: an answer is judged against its "
            "siblings"
        )
    if estimator == "pass_at_k" and not 1 <= config.algorithm.k < config.rollout.n:
        raise BadValueError(
            f"algorithm.k={config.algorithm.k} must be at least 1 and below rollout.n={config.rollout.n} under "
            "algorithm.adv_estimator=pass_at_k: as many answers as there are leave nothing to compare"
        )
    for name, remedy in _NOT_IN_THE_LOOP.items():
        if _is_on(config.algorithm[name]):
            raise BadValueError(f"algorithm.{name}={config.algorithm[name]} is not offered by this loop; {remedy}")
    if config.algorithm.filter_groups and config.algorithm.filter_groups.enable:
        raise BadValueError(
            "algorithm.filter_groups.enable=True is not offered by this loop; groups without a signal get advantage 0"
        )
    actor, data = config.actor, config.data
    if actor.ppo_mini_batch_size and data.train_batch_size % actor.ppo_mini_batch_size:
        raise BadValueError(
            f"actor.ppo_mini_batch_size={actor.ppo_mini_batch_size} does not divide "
            f"data.train_batch_size={data.train_batch_size}; choose one that does"
        )
