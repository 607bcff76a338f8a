"""Losses of answers as plain loops, written from the papers.

`lp` moves; `frozen` is the same log-probability where a formula stops the gradient. Varying lp with frozen held gives
the gradient that is meant.
"""

from dataclasses import dataclass
from math import exp, log, prod


@dataclass
class Answer:
    prompt: int
    advantage: float
    lp: list[float]
    frozen: list[float]
    old: list[float]
    selected: list[bool]


def clamp(x, low, high):
    return min(max(x, low), high)


def clipped_objective(ratio, advantage, low, high):
    return min(ratio * advantage, clamp(ratio, 1 - low, 1 + high) * advantage)


def vanilla(answer, s):
    losses = []
    for lp, old in zip(answer.lp, answer.old, strict=True):
        objective = clipped_objective(exp(lp - old), answer.advantage, s.clip_low, s.clip_high)
        if answer.advantage < 0:
            objective = max(objective, s.clip_c * answer.advantage)
        losses.append(-objective)
    return losses


def gspo(answer, s):
    differences = [now - old for now, old in zip(answer.frozen, answer.old, strict=True)]
    of_the_answer = exp(sum(differences) / len(differences))
    ratios = [of_the_answer * exp(lp - now) for lp, now in zip(answer.lp, answer.frozen, strict=True)]
    return [-clipped_objective(ratio, answer.advantage, s.clip_low, s.clip_high) for ratio in ratios]


def gspo_of_one_answer(answer, s):
    """The paper's own form, without tokens: one ratio per answer."""
    differences = [lp - old for lp, old in zip(answer.lp, answer.old, strict=True)]
    return -clipped_objective(exp(sum(differences) / len(differences)), answer.advantage, s.clip_low, s.clip_high)


def cispo(answer, s):
    weights = [clamp(exp(now - old), 1 - s.clip_low, 1 + s.clip_high) for now, old in ratios_of(answer)]
    return [-weight * answer.advantage * lp for weight, lp in zip(weights, answer.lp, strict=True)]


def sapo(answer, s):
    tau = s.tau_pos if answer.advantage > 0 else s.tau_neg
    gates = [4 / tau / (1 + exp(-tau * (exp(lp - old) - 1))) for lp, old in zip(answer.lp, answer.old, strict=True)]
    return [-gate * answer.advantage for gate in gates]


def dppo_tv(answer, s):
    losses = []
    for lp, (now, old) in zip(answer.lp, ratios_of(answer), strict=True):
        moved = exp(now) - exp(old)
        inside = moved <= s.clip_high if answer.advantage > 0 else moved >= -s.clip_low
        losses.append(-answer.advantage * min(exp(now - old), s.clip_c) * lp * inside)
    return losses


def dppo_kl(answer, s):
    losses = []
    for lp, (now, old) in zip(answer.lp, ratios_of(answer), strict=True):
        p, q = exp(now), exp(old)
        kl = q * log(q / p) + (1 - q) * log((1 - q) / (1 - p))
        inside = (kl <= s.clip_high or p <= q) if answer.advantage > 0 else (kl <= s.clip_low or p >= q)
        losses.append(-answer.advantage * min(p / q, s.clip_c) * lp * inside)
    return losses


def geo_mean(answer, s):
    """A product of bounded ratios and its n-th root, every token carrying the answer's loss."""
    kept = []
    for lp, old in zip(answer.lp, answer.old, strict=True):
        ratio = exp(lp - old)
        bounded = clamp(ratio, exp(-s.clip_low), exp(s.clip_high))
        kept.append(min(ratio, bounded) if answer.advantage > 0 else max(ratio, bounded))
    return [-answer.advantage * prod(kept) ** (1 / len(kept))] * len(kept)


def gpg(answer, s):
    return [-answer.advantage * lp for lp in answer.lp]


def dro(answer, s):
    pairs = zip(answer.lp, answer.old, strict=True)
    return [-(lp * answer.advantage - s.dro_beta / 2 * (lp - old) ** 2) for lp, old in pairs]


def clip_cov(answer, s):
    losses = []
    for lp, old, picked in zip(answer.lp, answer.old, answer.selected, strict=True):
        loss = -clipped_objective(exp(lp - old), answer.advantage, s.clip_low, s.clip_high)
        losses.append(0.0 if picked else loss)
    return losses


def kl_cov(answer, s):
    losses = []
    for lp, old, picked in zip(answer.lp, answer.old, answer.selected, strict=True):
        loss = -answer.advantage * exp(lp - old)
        losses.append(loss + s.ppo_kl_coef * abs(lp - old) if picked else loss)
    return losses


def ratios_of(answer):
    return zip(answer.frozen, answer.old, strict=True)


LOSSES = {
    "vanilla": vanilla,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "geo_mean": geo_mean,
    "gpg": gpg,
    "reinforce": gpg,
    "dro": dro,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}


def aggregate(mode, answers, losses, max_length):
    """losses: one list per answer, in the order of the answers; an answer without tokens is not counted."""
    filled = [(answer, line) for answer, line in zip(answers, losses, strict=True) if line]
    if not filled:
        return 0.0
    sums = [sum(line) for _, line in filled]
    if mode == "token-sum":
        return sum(sums)
    if mode == "token-mean":
        return sum(sums) / sum(len(line) for _, line in filled)
    if mode == "seq-mean-token-sum":
        return sum(sums) / len(filled)
    if mode == "seq-mean-token-sum-norm":
        return sum(sums) / len(filled) / max_length
    if mode == "seq-mean-token-mean":
        return sum(total / len(line) for total, (_, line) in zip(sums, filled, strict=True)) / len(filled)
    assert mode == "prompt-mean"
    prompts = {answer.prompt for answer, _ in filled}
    means = []
    for prompt in prompts:
        of_prompt = [value for answer, line in filled if answer.prompt == prompt for value in line]
        means.append(sum(of_prompt) / len(of_prompt))
    return sum(means) / len(means)


def loss(name, mode, answers, settings, max_length):
    lines = [LOSSES[name](answer, settings) if answer.lp else [] for answer in answers]
    return aggregate(mode, answers, lines, max_length)


def gradient(name, mode, answers, settings, max_length, step=1e-6):
    """Central differences in every lp, frozen held."""
    result = []
    for answer in answers:
        for t, lp in enumerate(answer.lp):
            sides = []
            for moved in (lp + step, lp - step):
                answer.lp[t] = moved
                sides.append(loss(name, mode, answers, settings, max_length))
            answer.lp[t] = lp
            result.append((sides[0] - sides[1]) / (2 * step))
    return result


def covariances(answers):
    """(A - mean) (lp - mean) of every token, over all tokens."""
    tokens = [(answer.advantage, lp) for answer in answers for lp in answer.lp]
    mean_a, mean_lp = (sum(column) / len(tokens) for column in zip(*tokens, strict=True))
    return [(a - mean_a) * (lp - mean_lp) for a, lp in tokens]


def kl(name, lp, ref):
    if name in ("kl", "k1"):
        return lp - ref
    if name == "abs":
        return abs(lp - ref)
    if name in ("mse", "k2"):
        return (lp - ref) ** 2 / 2
    assert name in ("low_var_kl", "k3")
    return exp(ref - lp) - (ref - lp) - 1
