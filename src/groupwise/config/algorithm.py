"""How scores become advantages: verl 0.9.1's field names and defaults.

The `algorithm:` section of a verl YAML file builds an `AlgoConfig` as it stands (`AlgoConfig.from_mapping`). The
fields at its end are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from groupwise.config.sections import Section
from groupwise.errors import BadValueError


@dataclass(frozen=True)
class KLControlConfig(Section):
    """The coefficient of the KL penalty: `fixed`, or `adaptive` (https://arxiv.org/abs/1909.08593)."""

    type: str = "fixed"
    """fixed, or adaptive: it grows while the KL is above the target and shrinks below it."""
    kl_coef: float = 0.001
    """The weight of the penalty; where it starts, if adaptive."""
    horizon: int = 10000
    """Adaptive: the weight changes by at most a fifth over so many answers."""
    target_kl: float = 0.1
    """Adaptive: the KL to hold."""


@dataclass(frozen=True)
class FilterGroupsConfig(Section):
    """Dynamic sampling (DAPO): drop groups whose `metric` is the same for every answer and sample others."""

    enable: bool = False
    """verl's; refused here: groups without a signal get advantage 0."""
    metric: str | None = None
    """What is compared inside a group, in verl's names: score, seq_reward, acc, ..."""
    max_num_gen_batches: int = 0
    """Batches to sample at most before giving up; 0 is without a limit."""
    max_inflight_gen_batches: int = 1
    """verl's; batches sampled at the same time."""


@dataclass(frozen=True)
class AlgoConfig(Section):
    """How scores become advantages."""

    gamma: float = 1.0
    """Discount per token."""
    lam: float = 1.0
    """GAE's trade between bias (0) and variance (1)."""
    adv_estimator: str = "gae"
    """A name in the registry of `groupwise.advantages`. verl's default is kept; a training run's own default is
    grpo."""
    norm_adv_by_std_in_grpo: bool = True
    """False switches the division by the group's standard deviation off in every estimator that has one."""
    use_kl_in_reward: bool = False
    """True takes the KL to the reference policy off the reward instead of adding it to the loss."""
    kl_penalty: str = "kl"
    """The KL estimator for that: kl, abs, mse or low_var_kl."""
    kl_ctrl: KLControlConfig = field(default_factory=KLControlConfig)
    use_pf_ppo: bool = False
    """verl's; refused here: it resamples the batch behind the back of the groups."""
    pf_ppo: Mapping[str, Any] = field(default_factory=dict)
    """verl's, for `use_pf_ppo`."""
    filter_groups: FilterGroupsConfig | None = None
    rollout_correction: Mapping[str, Any] | None = None
    """verl's, for rollouts from another engine than the one that is trained; refused here, where they are one."""
    gdpo_reward_keys: tuple[str, ...] | None = None
    """The parts of the reward that GDPO normalises apart, as named by the reward function."""
    gdpo_reward_weights: tuple[float, ...] | None = None
    """One weight per key; None weighs them alike."""

    epsilon: float | None = None
    """Added to the standard deviation; None is the estimator's own (1e-6 where verl has 1e-6)."""
    convention: str = "verl"
    """Whose GRPO: a row of `groupwise.advantages.CONVENTIONS`."""
    exclude_empty: bool = False
    """Leave answers without a single response token out of their group's statistics (verl keeps them in)."""
    k: int = 2
    """The k of the estimator `pass_at_k`."""

    @property
    def kl_in_reward(self) -> bool:
        """A KL penalty is taken off the reward: it is asked for, and weighs something."""
        return self.use_kl_in_reward and self.kl_ctrl.kl_coef != 0

    def __post_init__(self) -> None:
        sections: dict[str, type[Section]] = {"kl_ctrl": KLControlConfig, "filter_groups": FilterGroupsConfig}
        for name, section in sections.items():
            given = getattr(self, name)
            if given is not None and not isinstance(given, section):
                object.__setattr__(self, name, section.from_mapping(given))
        for name in ("gdpo_reward_keys", "gdpo_reward_weights"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if not 0.0 <= self.gamma <= 1.0 or not 0.0 <= self.lam <= 1.0:
            raise BadValueError(
                f"gamma={self.gamma}, lam={self.lam}: both are factors between 0 and 1; "
                "1.0 is no discounting and is what outcome rewards want"
            )
