"""Groupwise's advantages inside TRL's GRPOTrainer.

    from groupwise.integrations.trl import GroupwiseGRPOTrainer

    trainer = GroupwiseGRPOTrainer(model=..., reward_funcs=..., args=GRPOConfig(...), train_dataset=...)
    trainer = GroupwiseGRPOTrainer(..., advantage_estimator="pass_at_k", advantage_options={"k": 4})

Out of the box the numbers are TRL's own where TRL is right: GRPO in TRL's convention (ddof 1, eps 1e-4) with
`scale_rewards` obeyed. Groups of equal rewards get exactly 0, where float32 leaves TRL a rounding error to scale up.
`GroupRelativeAdvantages` is the same as a mixin for a trainer of your own. Tested with TRL 1.16.0.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer

from groupwise.advantages import Groups, advantages_from_scores
from groupwise.advantages.registry import name_of
from groupwise.advantages.scores import check_options, find_equation
from groupwise.errors import BadValueError, NonFiniteScoreError, UnsupportedVersionError
from groupwise.types import Bool, Float64

# Options of an equation that the trainer fills in: they are different for every batch.
_FROM_BATCH = frozenset({"lengths", "parts", "weights"})


class GroupRelativeAdvantages:
    """A mixin, left of `GRPOTrainer`: how good an answer is among its siblings, by any outcome estimator.

    advantage_estimator: a name of `groupwise.advantages.OUTCOME_ESTIMATORS`, your own included.
    advantage_options: keyword arguments of its equation, such as {"convention": "deepseekmath"} or {"k": 4}. What is
        not given: `convention` is "trl", `norm_adv_by_std_in_grpo` is False under scale_rewards="none". `lengths` are
        the completions' own tokens; `parts` and `weights` (gdpo) are the reward functions and `reward_weights`.

    Rewards are gathered from all processes, weighted and summed in float64. A completion that no reward function
    scored takes no part and gets 0, as in TRL. An infinite reward is an error. The metric `frac_reward_zero_std` is
    the exact share of groups in which no two scores differ. Evaluation judges with a copy of a running baseline.
    """

    def __init__(
        self,
        *args: Any,
        advantage_estimator: str | Enum = "grpo",
        advantage_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.advantage_estimator = name_of(advantage_estimator)
        self.advantage_options = self._complete_options(dict(advantage_options or {}))
        self._gathered_rewards: Tensor | None = None
        self._gathered_prompts: list[Any] = []

    def _complete_options(self: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Defaults from TRL's arguments; refuses what cannot be meant."""
        name, equation = self.advantage_estimator, find_equation(self.advantage_estimator)
        known = inspect.signature(equation).parameters
        if self.scale_rewards == "batch":
            raise BadValueError(
                "scale_rewards='batch' divides by the spread of all prompts together, which is not group-relative; "
                "use scale_rewards='group' or 'none', or advantage_estimator='reinforce_plus_plus_baseline'"
            )
        if self.multi_objective_aggregation == "normalize_then_sum" and name != "gdpo":
            raise BadValueError(
                f"multi_objective_aggregation='normalize_then_sum' is GDPO, but advantage_estimator is {name!r}; "
                "use advantage_estimator='gdpo', or multi_objective_aggregation='sum_then_normalize'"
            )
        if "convention" in known:
            options.setdefault("convention", "trl")
        if "norm_adv_by_std_in_grpo" in known and self.scale_rewards == "none":
            options.setdefault("norm_adv_by_std_in_grpo", False)
        filled = dict.fromkeys(_FROM_BATCH & known.keys())
        check_options(name, equation, {**filled, **options})
        return options

    def _calculate_rewards(
        self: Any, inputs: list[Any], prompts: list[Any], completions: list[Any], completion_ids_list: list[Any]
    ) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)  # type: ignore[misc]
        self._gathered_rewards = rewards
        if "baseline" in self.advantage_options:
            self._gathered_prompts = [repr(prompt) for prompt in gather_object(prompts)]
        return rewards

    def _generate_and_score_completions(self: Any, inputs: list[Any]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        rewards, self._gathered_rewards = self._gathered_rewards, None
        num_own = len(output["advantages"])
        if rewards is None or len(rewards) != num_own * self.accelerator.num_processes:
            raise UnsupportedVersionError(
                "this TRL no longer gathers the rewards of all processes in GRPOTrainer._calculate_rewards, where "
                "GroupRelativeAdvantages finds them: install trl==1.16.0"
            )
        mode = "train" if self.model.training else "eval"
        advantages, share = self._judge(rewards.double(), output, mode)
        first = self.accelerator.process_index * num_own
        output["advantages"] = advantages[first : first + num_own].to(output["advantages"])
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages))):
            logged.pop()
        logged.extend(advantages.tolist())
        self._metrics[mode]["frac_reward_zero_std"][-1] = share
        return output

    def _judge(
        self: Any, rewards: Float64[Tensor, "B K"], output: dict[str, Any], mode: str
    ) -> tuple[Float64[Tensor, "B"], float]:
        """The advantages of all processes' answers, and the share of groups that teach nothing."""
        failed = rewards.isnan().all(dim=1)
        weights = self.reward_weights.to(rewards)
        scores = (rewards * weights).nansum(dim=1)
        self._check_scores(scores, failed)
        group_size = self.num_generations if mode == "train" else self.num_generations_eval
        options = self.advantage_options
        known = inspect.signature(find_equation(self.advantage_estimator)).parameters
        columns = scores[:, None]
        if "parts" in known and "parts" not in options:
            self._check_parts(rewards, failed)
            columns = rewards
            options = {"parts": list(rewards.T), "weights": weights.tolist(), **options}
        if "lengths" in known and "lengths" not in options:
            options = {"lengths": self.accelerator.gather(_own_tokens(output)), **options}
        labels: Any = torch.arange(len(scores)) // group_size
        if "baseline" in options:
            labels = self._gathered_prompts
            if mode == "eval":
                options = {**options, "baseline": copy.deepcopy(options["baseline"])}
        groups = Groups.of(labels, len(scores), scores.device)
        advantages = advantages_from_scores(scores, groups, self.advantage_estimator, failed=failed, **options)
        return advantages, share_of_equal_groups(columns, failed, group_size)

    def _check_scores(self: Any, scores: Float64[Tensor, "B"], failed: Bool[Tensor, "B"]) -> None:
        bad = (~scores.isfinite() & ~failed).nonzero()[:, 0].tolist()
        if bad:
            raise NonFiniteScoreError(
                f"{len(bad)} of {len(scores)} completions have an infinite reward, the first in row {bad[0]}; mend the "
                f"reward functions ({', '.join(self.reward_func_names)}), or let them return None for such a completion"
            )

    def _check_parts(self: Any, rewards: Float64[Tensor, "B K"], failed: Bool[Tensor, "B"]) -> None:
        for name, column in zip(self.reward_func_names, rewards.T, strict=True):
            bad = (column.isnan() & ~failed).nonzero()[:, 0].tolist()
            if bad:
                raise BadValueError(
                    f"advantage_estimator='gdpo' normalises every reward by itself, but {name!r} returned None for row "
                    f"{bad[0]}, which another function scored; return a number, or use advantage_estimator='grpo'"
                )


class GroupwiseGRPOTrainer(GroupRelativeAdvantages, GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPOTrainer with Groupwise's advantages. See `GroupRelativeAdvantages` for its two arguments."""


def share_of_equal_groups(columns: Float64[Tensor, "B K"], failed: Bool[Tensor, "B"], group_size: int) -> float:
    """The share of groups whose answers do not differ in any column. One that has no two answers left is equal."""
    out = failed[:, None]
    lowest = torch.where(out, torch.inf, columns).view(-1, group_size, columns.shape[1]).amin(dim=1)
    highest = torch.where(out, -torch.inf, columns).view(-1, group_size, columns.shape[1]).amax(dim=1)
    return float((highest <= lowest).all(dim=1).double().mean())


def _own_tokens(output: dict[str, Any]) -> Tensor:
    """How many tokens the policy wrote in each completion of this process: tool results are not its own."""
    mask: Tensor = output["completion_mask"]
    return (mask * output["tool_mask"] if "tool_mask" in output else mask).sum(dim=1)
