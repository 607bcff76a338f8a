"""Names: a loss mode is a ratio level and a surrogate; a recipe is that, an aggregate and the numbers of its paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from groupwise.config import read
from groupwise.errors import unknown_name
from groupwise.objectives import surrogates
from groupwise.objectives.aggregates import AGGREGATES
from groupwise.objectives.inputs import Layout
from groupwise.objectives.kl import get_kl_estimator
from groupwise.objectives.registry import POLICY_LOSS_REGISTRY, PolicyLossFn
from groupwise.objectives.surrogates import Settings, Surrogate
from groupwise.types import Float


@dataclass(frozen=True)
class LossMode:
    """One of verl's policy losses, taken apart; or a user's own, which is a `function` and not a surrogate.

    aggregate: verl's default. forced: verl's function takes this aggregate whatever it is given.
    needs_selection: the surrogate asks for the tokens that `select_by_covariance` picks.
    """

    surrogate: Surrogate | None
    ratio: str = "token"
    aggregate: str = "token-mean"
    forced: bool = False
    needs_selection: bool = False
    defaults: Settings = field(default_factory=Settings)
    function: PolicyLossFn | None = None

    def weigh(self, weights: Float[Tensor, "L"], layout: Layout) -> Float[Tensor, "L"]:
        """Importance weights as this surrogate takes them: per token, or for geo_mean their geometric mean."""
        if self.surrogate is not surrogates.geo_mean:
            return weights
        return layout.spread(layout.mean(weights.log()).exp())


LOSS_MODES: dict[str, LossMode] = {
    "vanilla": LossMode(surrogates.dual_clip),
    "gspo": LossMode(surrogates.clip, ratio="sequence", aggregate="seq-mean-token-mean"),
    "cispo": LossMode(surrogates.cispo),
    "sapo": LossMode(surrogates.sapo, aggregate="seq-mean-token-mean", forced=True),
    "dppo_tv": LossMode(surrogates.dppo_tv, defaults=Settings(clip_c=20.0)),
    "dppo_kl": LossMode(surrogates.dppo_kl, defaults=Settings(clip_c=20.0)),
    "geo_mean": LossMode(surrogates.geo_mean, aggregate="seq-mean-token-mean", forced=True),
    "gpg": LossMode(surrogates.policy_gradient),
    "dro": LossMode(surrogates.dro),
    "clip_cov": LossMode(surrogates.clip_cov, needs_selection=True),
    "kl_cov": LossMode(surrogates.kl_cov, needs_selection=True),
    "reinforce": LossMode(surrogates.policy_gradient, aggregate="seq-mean-token-sum"),
}


@dataclass(frozen=True)
class Recipe:
    """One published method, from advantages to loss.

    settings: the numbers it is published with, over the defaults of `Settings`. estimator: the advantage it is
    published with; which one a run takes is `algorithm.adv_estimator`.
    """

    loss_mode: str
    aggregate: str
    settings: Mapping[str, float] = field(default_factory=dict)
    estimator: str = "grpo"
    source: str = ""


RECIPES: dict[str, Recipe] = {
    "grpo": Recipe("vanilla", "seq-mean-token-mean", source="2402.03300"),
    "dr_grpo": Recipe("vanilla", "seq-mean-token-sum-norm", estimator="dr_grpo", source="2503.20783"),
    "dapo": Recipe("vanilla", "token-mean", {"clip_high": 0.28, "clip_c": 10.0}, source="2503.14476"),
    "gspo": Recipe("gspo", "seq-mean-token-mean", {"clip_low": 3e-4, "clip_high": 4e-4}, source="2507.18071"),
    "cispo": Recipe("cispo", "token-mean", {"clip_low": 1.0, "clip_high": 4.0}, source="2506.13585"),
    "scalerl": Recipe("cispo", "prompt-mean", {"clip_low": 1.0, "clip_high": 4.0}, source="2510.13786"),
    "sapo": Recipe("sapo", "seq-mean-token-mean", source="2511.20347"),
    "gmpo": Recipe("geo_mean", "seq-mean-token-mean", {"clip_low": 0.4, "clip_high": 0.4}, source="2507.20673"),
    "dppo_tv": Recipe("dppo_tv", "token-mean", source="2602.04879"),
    "dppo_kl": Recipe("dppo_kl", "token-mean", source="2602.04879"),
    "gpg": Recipe("gpg", "token-mean", estimator="gpg", source="2504.02546"),
    "dro": Recipe("dro", "token-mean", source="2405.19107"),
    "clip_cov": Recipe("clip_cov", "token-mean", source="2505.22617"),
    "kl_cov": Recipe("kl_cov", "token-mean", source="2505.22617"),
    "rloo": Recipe("reinforce", "seq-mean-token-sum", estimator="rloo", source="2402.14740"),
    "remax": Recipe("reinforce", "seq-mean-token-sum", estimator="remax", source="2310.10505"),
    "reinforce": Recipe("reinforce", "seq-mean-token-sum", estimator="dr_grpo", source="Williams 1992"),
    "reinforce_plus_plus": Recipe("vanilla", "token-mean", estimator="reinforce_plus_plus", source="2501.03262"),
    "reinforce_plus_plus_baseline": Recipe(
        "vanilla", "token-mean", estimator="reinforce_plus_plus_baseline", source="2501.03262"
    ),
}

_CONFIG_NAMES = {"clip_low": "clip_ratio_low", "clip_high": "clip_ratio_high", "clip_c": "clip_ratio_c"}


@dataclass(frozen=True)
class Plan:
    """A recipe with the config's changes: everything a loss needs beside tensors. name: of the loss mode."""

    name: str
    mode: LossMode
    aggregate: str
    settings: Settings


def plan(config: Any) -> Plan:
    """The recipe that `config.recipe` names, and over it whatever the config sets.

    With another loss mode than the recipe's, the numbers the recipe sets for its own do not apply. Everything that
    can be refused without looking at a tensor is refused here: call it before work starts.
    """
    name = read(config, "recipe", "grpo")
    if name not in RECIPES:
        raise unknown_name("actor.recipe", name, RECIPES)
    recipe = RECIPES[name]
    loss_mode = read(config, "loss_mode", recipe.loss_mode)
    mode = get_loss_mode(loss_mode)
    own = recipe.settings if loss_mode == recipe.loss_mode else {}
    settings = settings_from(config, replace(mode.defaults, **own))
    if mode.surrogate is surrogates.dro:
        surrogates.dro_weight(settings)
    chosen = Plan(loss_mode, mode, read(config, "loss_agg_mode", recipe.aggregate), settings)
    if chosen.aggregate not in AGGREGATES:
        raise unknown_name("actor.loss_agg_mode", chosen.aggregate, AGGREGATES)
    if read(config, "use_kl_loss", False):
        get_kl_estimator(read(config, "kl_loss_type", "low_var_kl"))
    return chosen


def get_loss_mode(name: str) -> LossMode:
    """A row of `LOSS_MODES`, or what `register_policy_loss` has under the name."""
    if name in LOSS_MODES:
        return LOSS_MODES[name]
    if name in POLICY_LOSS_REGISTRY:
        return LossMode(None, function=POLICY_LOSS_REGISTRY[name])
    raise unknown_name("loss mode", name, {*LOSS_MODES, *POLICY_LOSS_REGISTRY})


def settings_from(config: Any, defaults: Settings) -> Settings:
    """The config's numbers over `defaults`; verl keeps some of them one level down, in `policy_loss`."""
    beneath = read(config, "policy_loss")
    found: dict[str, Any] = {}
    both = read(config, "clip_ratio")
    if both is not None:
        found |= {"clip_low": both, "clip_high": both}
    for name in (f.name for f in fields(Settings)):
        asked = _CONFIG_NAMES.get(name, name)
        value = read(config, asked, read(beneath, asked))
        if value is not None:
            found[name] = value
    return replace(defaults, **found)
