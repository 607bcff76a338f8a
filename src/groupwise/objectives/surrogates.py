"""Surrogates: advantages and log-probabilities to one loss per token. Each function is one equation.

Conventions all of them share: A is the advantage, lp the log-probability under the policy, x = lp - old_lp the
log-ratio of its token or of its answer, r = exp(x), sg(.) has no gradient. `low` and `high` are distances from 1.
Masked tokens arrive as 0 everywhere. With A = 0 a token has loss 0 and no gradient, except under the penalties of
`dro` and `kl_cov`. At the old policy the gradient of every surrogate is -A times that of lp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.errors import BadValueError, MissingFieldError
from groupwise.objectives.inputs import Layout
from groupwise.objectives.kl import MAX_LOG_RATIO
from groupwise.types import Bool, Float

# Sequence ratios are averages over many tokens; verl holds them below exp(10).
_MAX_SEQUENCE_LOG_RATIO = 10.0
_PROBABILITY_EPS = 1e-8


@dataclass(frozen=True)
class Settings:
    """The numbers in the surrogates, with verl's defaults; a recipe or a config replaces some.

    clip_low, clip_high: the ratio's bounds are 1 - low and 1 + high (thresholds of the divergence for dppo, of the
    log-ratio for geo_mean). clip_c: dual clip's bound on the ratio where A < 0; dppo's truncation of the weight.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_c: float = 3.0
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    clip_cov_ratio: float = 2e-4
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = 2e-4
    ppo_kl_coef: float = 0.1
    dro_beta: float | None = None

    def __post_init__(self) -> None:
        if self.clip_low < 0 or self.clip_high < 0:
            raise BadValueError(
                f"clip_ratio_low={self.clip_low}, clip_ratio_high={self.clip_high}: both are distances from the old "
                "policy and cannot be negative"
            )
        if self.clip_c <= 1:
            raise BadValueError(
                f"clip_ratio_c={self.clip_c}: the bound on the ratio must be above 1 (3.0 is usual, inf is none)"
            )
        if self.tau_pos <= 0 or self.tau_neg <= 0:
            raise BadValueError(f"tau_pos={self.tau_pos}, tau_neg={self.tau_neg}: both divide and must be above 0")
        for name in ("clip_cov_ratio", "kl_cov_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise BadValueError(f"{name}={getattr(self, name)}: a share of the tokens, above 0 and at most 1")


@dataclass(frozen=True)
class Tokens:
    """What a surrogate sees. log_ratio: of the token, or of its answer, as the ratio level says."""

    log_probs: Float[Tensor, "L"]
    old_log_probs: Float[Tensor, "L"]
    log_ratio: Float[Tensor, "L"]
    advantages: Float[Tensor, "L"]
    layout: Layout
    selected: Bool[Tensor, "L"] | None = None

    @property
    def ratio(self) -> Float[Tensor, "L"]:
        """exp(x), x held within ±20: beyond it the gradient is 0 and nothing overflows."""
        return self.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


@dataclass(frozen=True)
class Losses:
    """values: the loss of each token. clipped, clipped_low: where a bound took effect, for the metrics."""

    values: Float[Tensor, "L"]
    clipped: Bool[Tensor, "L"] | None = None
    clipped_low: Bool[Tensor, "L"] | None = None


Surrogate = Callable[[Tokens, Settings], Losses]


def token_log_ratio(
    log_probs: Float[Tensor, "L"],
    old_log_probs: Float[Tensor, "L"],
    layout: Layout,  # noqa: ARG001  (both levels have the same signature)
) -> Float[Tensor, "L"]:
    """x_t = lp_t - old_t. PPO, https://arxiv.org/abs/1707.06347."""
    return log_probs - old_log_probs


def sequence_log_ratio(
    log_probs: Float[Tensor, "L"], old_log_probs: Float[Tensor, "L"], layout: Layout
) -> Float[Tensor, "L"]:
    """x_t = sg(mean of lp - old over the answer) + lp_t - sg(lp_t). GSPO-token, https://arxiv.org/abs/2507.18071.

    Its value is that of the answer's length-normalised ratio at every token; its gradient is the token's own, so
    that the mean over an answer's tokens has the gradient of the answer's ratio. Held below 10, as in verl.
    """
    mean = layout.spread(layout.mean(log_probs.detach() - old_log_probs))
    return (mean + log_probs - log_probs.detach()).clamp(max=_MAX_SEQUENCE_LOG_RATIO)


RATIO_LEVELS: dict[str, Callable[[Tensor, Tensor, Layout], Tensor]] = {
    "token": token_log_ratio,
    "sequence": sequence_log_ratio,
}


def clip(tokens: Tokens, settings: Settings) -> Losses:
    """L = max(-A r, -A clip(r, 1 - low, 1 + high)). PPO, https://arxiv.org/abs/1707.06347.

    low < high is DAPO's clip-higher, https://arxiv.org/abs/2503.14476; with sequence ratios it is GSPO.
    """
    ratio, gain = tokens.ratio, -tokens.advantages
    plain = gain * ratio
    bounded = gain * ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return Losses(torch.maximum(plain, bounded), bounded > plain)


def dual_clip(tokens: Tokens, settings: Settings) -> Losses:
    """PPO clip, and where A < 0 at most -A c: a ratio above c has no gradient. https://arxiv.org/abs/1912.09729."""
    once = clip(tokens, settings)
    negative, bound = tokens.advantages < 0, -tokens.advantages * settings.clip_c
    values = torch.where(negative, torch.minimum(once.values, bound), once.values)
    return Losses(values, once.clipped, negative & (once.values > bound))


def cispo(tokens: Tokens, settings: Settings) -> Losses:
    """L = -sg(clip(r, 1 - low, 1 + high)) A lp. CISPO, https://arxiv.org/abs/2506.13585.

    The weight is bounded, the gradient is not cut: every token keeps one.
    """
    ratio = tokens.ratio.detach()
    weight = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return Losses(-weight * tokens.advantages * tokens.log_probs, weight != ratio)


def sapo(tokens: Tokens, settings: Settings) -> Losses:
    """L = -A sigmoid(tau (r - 1)) 4 / tau, tau_pos where A > 0, else tau_neg. https://arxiv.org/abs/2511.20347.

    A smooth gate in place of the clip: the weight of a token falls off as its ratio leaves 1.
    """
    tau = torch.full_like(tokens.advantages, settings.tau_neg).masked_fill(tokens.advantages > 0, settings.tau_pos)
    return Losses(-tokens.advantages * torch.sigmoid(tau * (tokens.ratio - 1)) * 4 / tau)


def dppo_tv(tokens: Tokens, settings: Settings) -> Losses:
    """L = -A sg(min(r, c)) lp, 0 where the probability left the trust region. https://arxiv.org/abs/2602.04879.

    Outside: A > 0 and p - old_p > high, or A <= 0 and p - old_p < -low.
    """
    moved = (tokens.log_probs.exp() - tokens.old_log_probs.exp()).detach()
    outside = torch.where(tokens.advantages > 0, moved > settings.clip_high, moved < -settings.clip_low)
    return _truncated(tokens, settings, outside)


def dppo_kl(tokens: Tokens, settings: Settings) -> Losses:
    """As `dppo_tv`, the distance being the KL divergence of two coins. https://arxiv.org/abs/2602.04879.

    kl = q log(q / p) + (1 - q) log((1 - q) / (1 - p)), q the old probability, 1e-8 added to what is left of 1.
    Outside: beyond `high` on the way up where A > 0, beyond `low` on the way down elsewhere.
    """
    p, q = tokens.log_probs.exp().detach(), tokens.old_log_probs.exp()
    rest = torch.log((1 - q + _PROBABILITY_EPS) / (1 - p + _PROBABILITY_EPS))
    kl = q * (tokens.old_log_probs - tokens.log_probs.detach()) + (1 - q) * rest
    too_high, too_low = (kl > settings.clip_high) & (p > q), (kl > settings.clip_low) & (p < q)
    return _truncated(tokens, settings, torch.where(tokens.advantages > 0, too_high, too_low))


def _truncated(tokens: Tokens, settings: Settings, outside: Bool[Tensor, "L"]) -> Losses:
    ratio = tokens.ratio.detach()
    values = -tokens.advantages * ratio.clamp(max=settings.clip_c) * tokens.log_probs
    return Losses(torch.where(outside, 0.0, values), outside, (ratio > settings.clip_c) & ~outside)


def geo_mean(tokens: Tokens, settings: Settings) -> Losses:
    """L = -A exp(mean over the answer of x clipped at -low, +high). GMPO, https://arxiv.org/abs/2507.20673.

    x is clipped where A asks for more of it: min(x, clip(x)) where A > 0, max where A < 0; A is the mean advantage of
    the answer. Every token of the answer carries that loss, so that seq-mean-token-mean is the mean over answers
    and any micro-batch size gives the same; another aggregate weighs the answers by their length.
    """
    layout, sign = tokens.layout, tokens.advantages.sign()
    clipped = tokens.log_ratio.clamp(-settings.clip_low, settings.clip_high)
    kept = sign * torch.minimum(sign * tokens.log_ratio, sign * clipped)
    ratio = layout.mean(kept).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    beyond = tokens.log_ratio != clipped
    values = layout.spread(-layout.mean(tokens.advantages) * ratio)
    return Losses(values, beyond & (tokens.advantages > 0), beyond & (tokens.advantages < 0))


def policy_gradient(tokens: Tokens, settings: Settings) -> Losses:  # noqa: ARG001
    """L = -A lp: no ratio. REINFORCE, and GPG, https://arxiv.org/abs/2504.02546. Exact on-policy only."""
    return Losses(-tokens.advantages * tokens.log_probs)


def dro(tokens: Tokens, settings: Settings) -> Losses:
    """L = -(A lp - beta / 2 x^2). DRO, https://arxiv.org/abs/2405.19107: squared log-ratio in place of a clip."""
    penalty = 0.5 * dro_weight(settings) * tokens.log_ratio.square()
    return Losses(penalty - tokens.advantages * tokens.log_probs)


def dro_weight(settings: Settings) -> float:
    if settings.dro_beta is None or settings.dro_beta <= 0:
        raise BadValueError(
            f"dro_beta={settings.dro_beta}: DRO has no default weight of the squared log-ratio; set actor.dro_beta "
            "above 0"
        )
    return settings.dro_beta


def clip_cov(tokens: Tokens, settings: Settings) -> Losses:
    """PPO clip, and 0 at the tokens picked for their covariance. Clip-Cov, https://arxiv.org/abs/2505.22617.

    A and lp far above their means at once is what drives the entropy down. Which tokens is a matter of the whole
    step: `select_by_covariance`.
    """
    once, selected = clip(tokens, settings), _selected(tokens, "clip_cov")
    return Losses(torch.where(selected, 0.0, once.values), selected)


def kl_cov(tokens: Tokens, settings: Settings) -> Losses:
    """L = -A r, + coef |x| at the tokens picked for their covariance. KL-Cov, https://arxiv.org/abs/2505.22617."""
    penalty = settings.ppo_kl_coef * tokens.log_ratio.abs()
    selected = _selected(tokens, "kl_cov")
    return Losses(-tokens.advantages * tokens.ratio + torch.where(selected, penalty, 0.0), selected)


def _selected(tokens: Tokens, name: str) -> Bool[Tensor, "L"]:
    if tokens.selected is None:
        raise MissingFieldError(
            f"loss mode {name!r} treats the tokens of highest covariance over the whole step: give "
            "LossInputs.selected, made by select_by_covariance before the step is cut into micro-batches"
        )
    return tokens.selected
