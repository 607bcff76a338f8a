"""The settings, one dataclass per stage. Standard library only: reading a config never loads torch.

The text under a field is its line in docs/configuration.md; scripts/write_settings.py writes it there.
"""

from groupwise.config.algorithm import AlgoConfig, FilterGroupsConfig, KLControlConfig
from groupwise.config.run import (
    ActorConfig,
    DataConfig,
    ModelConfig,
    OptimConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TrainerConfig,
)
from groupwise.config.sections import Section, read

__all__ = [
    "ActorConfig",
    "AlgoConfig",
    "DataConfig",
    "FilterGroupsConfig",
    "KLControlConfig",
    "ModelConfig",
    "OptimConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "Section",
    "TrainerConfig",
    "read",
]
