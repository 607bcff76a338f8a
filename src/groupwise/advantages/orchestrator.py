"""`compute_advantage`: find the estimator by name and hand it what its signature asks for. verl's contract."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

from torch import Tensor

from groupwise.advantages.fields import replace
from groupwise.advantages.registry import get_adv_estimator_fn, name_of
from groupwise.advantages.rows import sum_rewards
from groupwise.advantages.scores import as_row_mask
from groupwise.config import read
from groupwise.errors import BadValueError, MissingFieldError, NonFiniteScoreError

_ORIGINS = {
    "token_level_rewards": "batch['token_level_rewards'], the reward of every token, [answers, tokens]",
    "response_mask": "batch['response_mask'], or batch['responses'] and batch['attention_mask'] to make it from",
    "index": "non_tensor_batch['uid'], one label per answer, the same for all answers to a prompt",
    "values": "batch['values'], the critic's value of every token",
    "reward_baselines": "batch['reward_baselines'], the score of the greedy answer to each prompt",
    "old_log_probs": "batch['old_log_probs'], the policy's log-probability of every token",
    "sum_pi_squared": "batch['sum_pi_squared'], from the actor with actor.calculate_sum_pi_squared=True",
    "step_mask": "batch['step_mask'], 1 at the last token of every step",
    "baseline": "meta_info['baseline'], a RunningBaseline that lives across steps",
}


def compute_response_mask(data: Any) -> Tensor:
    """The part of the attention mask that covers the response."""
    for field in ("responses", "attention_mask"):
        if field not in data.batch.keys():  # noqa: SIM118  (a TensorDict does not take `in`)
            raise MissingFieldError(f"the batch has no 'response_mask' and no {field!r} to make it from")
    attention_mask: Tensor = data.batch["attention_mask"]
    return attention_mask[:, attention_mask.shape[1] - data.batch["responses"].shape[1] :]


def compute_advantage(
    data: Any,
    adv_estimator: str | Enum,
    gamma: float = 1.0,
    lam: float = 1.0,
    num_repeat: int = 1,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
) -> Any:
    """Write `advantages` and `returns` into `data.batch` and return `data`.

    `data` has `.batch` (a dict or TensorDict of tensors) and `.non_tensor_batch` (a dict), like verl's
    DataProto. The estimator gets what its parameters name: a field of the batch, of the non-tensor batch, of
    `meta_info` or of the config, or one of the arguments here; `index` is the uid as it stands. One with
    **kwargs gets verl's fields. NaN or infinite scores are refused, except of answers marked in a field
    `failed`.
    """
    if read(config, "use_pf_ppo", False):
        raise BadValueError(
            "use_pf_ppo=True is not offered: it resamples the rows of the batch behind the back of whoever holds their "
            "order; set algorithm.use_pf_ppo=False"
        )
    if "response_mask" not in data.batch.keys():  # noqa: SIM118
        data.batch["response_mask"] = compute_response_mask(data)
    divide = norm_adv_by_std_in_grpo and bool(read(config, "norm_adv_by_std_in_grpo", True))
    if not divide and read(config, "norm_adv_by_std_in_grpo", False):
        config = replace(config, norm_adv_by_std_in_grpo=False)
    arguments = {
        "gamma": gamma,
        "lam": lam,
        "num_repeat": num_repeat,
        "norm_adv_by_std_in_grpo": divide,
        "config": config,
        "non_tensor_batch": data.non_tensor_batch,
        "batch": data.batch,
    }
    if "uid" in data.non_tensor_batch:
        arguments["index"] = data.non_tensor_batch["uid"]
    function = get_adv_estimator_fn(adv_estimator)
    fields = select_fields(function, name_of(adv_estimator), data, arguments)
    check_finite(data)
    data.batch["advantages"], data.batch["returns"] = function(**fields)
    return data


def select_fields(function: Any, name: str, data: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """What the signature names, and verl's fields for one with **kwargs."""
    parameters = inspect.signature(function).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        for field in ("token_level_rewards", "response_mask", "config", "index", "reward_baselines"):
            if field in arguments or field in data.batch.keys():  # noqa: SIM118
                named.setdefault(field, inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY))
    fields: dict[str, Any] = {}
    for field, parameter in named.items():
        places = (arguments, data.batch, data.non_tensor_batch, getattr(data, "meta_info", {}))
        place = next((place for place in places if field in place.keys()), None)  # noqa: SIM118
        setting = read(arguments["config"], field)
        if place is not None:
            fields[field] = place[field]
        elif setting is not None:
            fields[field] = setting
        elif parameter.default is parameter.empty:
            raise missing_field(name, field)
    return fields


def missing_field(name: str, field: str) -> MissingFieldError:
    """The error of an estimator that needs a field nobody has."""
    origin = _ORIGINS.get(field, f"a field {field!r} of the batch, of non_tensor_batch or of the config")
    return MissingFieldError(f"estimator {name!r} needs {field!r}: {origin}")


def check_finite(data: Any) -> None:
    """Refuse NaN and infinite scores, by row and label."""
    if "token_level_rewards" not in data.batch.keys():  # noqa: SIM118
        raise MissingFieldError(f"the batch has no {_ORIGINS['token_level_rewards']}")
    bad = sum_rewards(data.batch["token_level_rewards"]).isnan()
    for fields in (data.batch, data.non_tensor_batch):
        if "failed" in fields.keys():  # noqa: SIM118
            bad = bad & ~as_row_mask("failed", fields["failed"], bad)
    if not bad.any():
        return
    labels = data.non_tensor_batch.get("uid", [])
    labels = labels.tolist() if hasattr(labels, "tolist") else labels
    rows = bad.nonzero()[:, 0].tolist()
    named = [f"row {row}" + (f" (uid {labels[row]!r})" if row < len(labels) else "") for row in rows[:5]]
    raise NonFiniteScoreError(
        f"{len(rows)} of {len(bad)} answers have a NaN or infinite score: {', '.join(named)}"
        f"{', ...' if len(rows) > 5 else ''}; mend the reward function, or mark these answers in a field 'failed'"
    )
