"""The settings, one dataclass per stage. Standard library only: reading a config never loads torch.

`AlgoConfig` carries verl 0.9.1's field names and defaults, so that the `algorithm:` section of a verl YAML
file builds one as it stands (`AlgoConfig.from_mapping`). The fields at its end are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from groupwise.errors import BadValueError, unknown_name

# Hydra writes the class to build into this key; which class that is, is decided here.
_HYDRA_KEY = "_target_"


@dataclass(frozen=True)
class Section(Mapping[str, Any]):
    """A frozen dataclass that also reads like a mapping: `c.gamma`, `c["gamma"]`, `c.get("gamma", 1.0)`, `{**c}`."""

    def __getitem__(self, key: str) -> Any:
        if key not in self.names():
            raise unknown_name(f"{type(self).__name__} field", key, self.names())
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """From a dict or an OmegaConf node; an unknown key is an error that names the nearest one."""
        values = {str(key): mapping[key] for key in mapping if key != _HYDRA_KEY}
        for key in values:
            if key not in cls.names():
                raise unknown_name(f"{cls.__name__} field", key, cls.names())
        return cls(**values)


@dataclass(frozen=True)
class KLControlConfig(Section):
    """The coefficient of the KL penalty: `fixed`, or `adaptive` (https://arxiv.org/abs/1909.08593)."""

    type: str = "fixed"
    kl_coef: float = 0.001
    horizon: int = 10000
    target_kl: float = 0.1


@dataclass(frozen=True)
class FilterGroupsConfig(Section):
    """Dynamic sampling (DAPO): drop groups whose `metric` is the same for every answer and sample others."""

    enable: bool = False
    metric: str | None = None
    max_num_gen_batches: int = 0
    max_inflight_gen_batches: int = 1


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
    kl_penalty: str = "kl"
    kl_ctrl: KLControlConfig = field(default_factory=KLControlConfig)
    use_pf_ppo: bool = False
    pf_ppo: Mapping[str, Any] = field(default_factory=dict)
    filter_groups: FilterGroupsConfig | None = None
    rollout_correction: Mapping[str, Any] | None = None
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
