"""Make a running verl 0.9 use Groupwise's estimators.

    from groupwise.integrations.verl import install

    install()                       # in the process that computes advantages
    ...                             # train as ever: algorithm.adv_estimator=grpo, dr_grpo, maxrl, ...

verl's trainer computes advantages in a Ray process of its own (the task runner), which a call in your launch script
does not reach. There, let verl do it while it is imported, for every process it starts on this machine:

    export VERL_USE_EXTERNAL_MODULES=groupwise.integrations.verl_autoinstall

and on a Ray cluster that is already running, through the job's environment:

    python -m verl.trainer.main_ppo ... \\
      +ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=groupwise.integrations.verl_autoinstall

Modules of your own that register estimators may stand in the same list, separated by commas.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from groupwise import advantages
from groupwise.advantages import ADV_ESTIMATOR_REGISTRY, AdvantageEstimator
from groupwise.advantages.orchestrator import missing_field
from groupwise.advantages.registry import name_of
from groupwise.config import read
from groupwise.errors import BadValueError, MissingFieldError, UnsupportedVersionError

Namespace = dict[str, Any]

_ORCHESTRATOR = "compute_advantage"

# What verl's orchestrator hands to an estimator of its registry, whether its signature asks for it or not.
_HANDED_OVER = frozenset(
    {
        "token_level_rewards",
        "response_mask",
        "config",
        "index",
        "reward_baselines",
        "non_tensor_batch",
        "batch",
        "sum_pi_squared",
        "old_log_probs",
        "rollout_is_weights",
    }
)

_ABSENT = object()


@dataclass(frozen=True)
class _Replacement:
    """One name in one namespace: what stood there, and what stands there now."""

    namespace: Namespace
    name: str
    before: Any
    ours: Any

    def undo(self) -> None:
        if self.namespace.get(self.name) is not self.ours:
            return  # somebody has put something else there since, which is theirs to take away
        if self.before is _ABSENT:
            del self.namespace[self.name]
        else:
            self.namespace[self.name] = self.before


_replacements: list[_Replacement] = []


def install(*, orchestrator: bool = True) -> None:
    """Put Groupwise's estimators in the place of verl's, and those that verl lacks beside them.

    verl's registry: all of verl's names become ours, every other name of `ADV_ESTIMATOR_REGISTRY` is added (a name
    under which verl's registry holds an estimator of yours is refused). verl's module `core_algos`: its `compute_*`
    functions of our names become ours; two of them verl calls past its registry.

    `orchestrator=True` also replaces verl's `compute_advantage`, wherever it has been imported. Without that, verl's
    own keeps its gaps: it drops `norm_adv_by_std_in_grpo` for grpo_vectorized and gdpo, hands grpo no config (no
    epsilon, no convention), and no estimator a field beyond its fixed list, such as step rewards. It is the default
    because those who install this ask for advantages that are what their config says. Two cases still go to verl's
    original: `use_pf_ppo`, and an estimator that only verl's registry knows.

    Installing again refreshes: estimators registered meanwhile come along. `uninstall` restores what was there.
    """
    uninstall()
    core_algos, trainer = _import_verl()
    registry: Namespace = core_algos.ADV_ESTIMATOR_REGISTRY
    _check_names(registry)
    for name, function in ADV_ESTIMATOR_REGISTRY.items():
        _put(registry, name, _asked_by_verl(name, function))
    attributes: Namespace = vars(core_algos)
    for name in advantages.__all__:
        if name.startswith("compute_") and name in attributes:
            _put(attributes, name, getattr(advantages, name))
    if orchestrator:
        theirs = trainer.compute_advantage
        ours = _orchestrate(theirs, registry)
        for namespace in _where_bound(theirs):
            _put(namespace, _ORCHESTRATOR, ours)


def uninstall() -> None:
    """Restore what was there before `install`. What others have put there since stays, names they added included."""
    for replacement in _replacements:
        if replacement.name == _ORCHESTRATOR:
            # A module imported while ours was in place has it too.
            for namespace in _where_bound(replacement.ours):
                _Replacement(namespace, _ORCHESTRATOR, replacement.before, replacement.ours).undo()
        replacement.undo()
    _replacements.clear()


@contextmanager
def installed(*, orchestrator: bool = True) -> Iterator[None]:
    """`with installed(): ...` has Groupwise in verl for as long as the block runs."""
    install(orchestrator=orchestrator)
    try:
        yield
    finally:
        uninstall()


def _put(namespace: Namespace, name: str, ours: Any) -> None:
    _replacements.append(_Replacement(namespace, name, namespace.get(name, _ABSENT), ours))
    namespace[name] = ours


def _import_verl() -> tuple[Any, Any]:
    """verl's `core_algos` and `ray_trainer`, of a version whose insides are known."""
    # verl may be in the middle of its own import here; by then it has its version.
    import verl

    if not verl.__version__.startswith("0.9."):
        raise UnsupportedVersionError(
            f"verl {verl.__version__} is installed, but this integration replaces parts of verl 0.9 and is tested with "
            "0.9.1: install verl==0.9.1, or call the functions of groupwise.advantages yourself"
        )
    from verl.trainer.ppo import core_algos, ray_trainer

    return core_algos, ray_trainer


def _check_names(registry: Namespace) -> None:
    """Refuse to push aside an estimator that somebody else registered with verl."""
    verls_own = {member.value for member in AdvantageEstimator}
    for name, function in ADV_ESTIMATOR_REGISTRY.items():
        theirs = registry.get(name, function)
        if name not in verls_own and theirs is not function:
            raise BadValueError(
                f"advantage estimator {name!r} is {theirs.__module__}.{theirs.__qualname__} in verl's registry and "
                f"{function.__module__}.{function.__qualname__} in Groupwise's; register one under another name"
            )


def _where_bound(function: Callable[..., Any]) -> list[Namespace]:
    """The modules, verl's or a recipe's, that have the orchestrator under its own name."""
    namespaces = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
    return [namespace for namespace in namespaces if namespace.get(_ORCHESTRATOR) is function]


def _orchestrate(theirs: Callable[..., Any], registry: Namespace) -> Callable[..., Any]:
    def compute_advantage(
        data: Any,
        adv_estimator: str | Enum,
        gamma: float = 1.0,
        lam: float = 1.0,
        num_repeat: int = 1,
        norm_adv_by_std_in_grpo: bool = True,
        config: Any = None,
    ) -> Any:
        """`groupwise.advantages.compute_advantage`, or verl's where only verl can."""
        name = name_of(adv_estimator)
        only_verl = read(config, "use_pf_ppo", False) or (name in registry and name not in ADV_ESTIMATOR_REGISTRY)
        compute = theirs if only_verl else advantages.compute_advantage
        return compute(data, adv_estimator, gamma, lam, num_repeat, norm_adv_by_std_in_grpo, config)

    return compute_advantage


def _asked_by_verl(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """An estimator that takes verl's fixed list of fields: it drops what its signature does not name, and names
    what is missing."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = [p.name for p in parameters if p.name in named and p.default is p.empty]

    @functools.wraps(function)
    def estimator(*args: Any, **fields: Any) -> Any:
        if not takes_all:
            fields = {field: value for field, value in fields.items() if field in named or field not in _HANDED_OVER}
        given = {*named[: len(args)], *fields}
        absent = [field for field in required if field not in given]
        if absent:
            raise MissingFieldError(
                f"{missing_field(name, absent[0])}. verl's orchestrator hands over a fixed list of fields; "
                "groupwise.integrations.verl.install(orchestrator=True) takes it from the whole batch"
            )
        return function(*args, **fields)

    return estimator
