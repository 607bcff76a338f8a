"""Groupwise trains language models with reinforcement learning and no critic.

Every answer is judged against the other answers to the same prompt. `groupwise.advantages` is the heart: scores
and prompt labels in, advantages out, with verl's names. Importing this module loads nothing; the names below
are found on first use.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_HOMES = {
    "AlgoConfig": "groupwise.config",
    "Groups": "groupwise.advantages",
    "advantages_from_scores": "groupwise.advantages",
    "check_groups": "groupwise.advantages",
    "compute_advantage": "groupwise.advantages",
    "compute_grpo_outcome_advantage": "groupwise.advantages",
    "register_adv_est": "groupwise.advantages",
    "register_outcome_estimator": "groupwise.advantages",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604  (the rest are strings)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("groupwise")
        except PackageNotFoundError:
            return "0+source"
    if name not in _HOMES:
        raise AttributeError(f"module 'groupwise' has no attribute {name!r}; it offers {', '.join(_HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
