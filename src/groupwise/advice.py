"""Settings that are allowed and probably not meant: each is said in one line before the first step."""

from __future__ import annotations

from groupwise.config import DataConfig, ModelConfig, RunConfig
from groupwise.objectives import RECIPES
from groupwise.tasks import BadRow

# A learning rate above which pretrained models are at risk.
_FAST = 2e-5
# How many rows that were left out are shown.
_SHOWN = 3


def advice(config: RunConfig) -> list[str]:
    """What to know about the settings of a run, in their order."""
    said = (_learning_rate(config), _answer_length(config), _sampling(config), _estimator(config), *_kl(config))
    return [line for line in said if line]


def on_bad_rows(rows: list[BadRow]) -> list[str]:
    """The rows of the data files that are left out: how many, and the first of them."""
    if not rows:
        return []
    more = "; ..." if len(rows) > _SHOWN else ""
    count = "1 row of the data files is" if len(rows) == 1 else f"{len(rows)} rows of the data files are"
    return [f"{count} unusable and left out: {'; '.join(map(str, rows[:_SHOWN]))}{more}"]


def _learning_rate(config: RunConfig) -> str | None:
    """The default is the small model's; a large one falls apart under it in a few steps."""
    rate = config.actor.optim.lr
    if config.model.path == ModelConfig().path or rate <= _FAST:
        return None
    return (
        f"actor.optim.lr={rate:g} suits the small model that comes with the package; pretrained models learn at 1e-6 "
        "to 1e-5, and fall apart far above"
    )


def _answer_length(config: RunConfig) -> str | None:
    """The default is what a sum takes."""
    length = config.data.max_response_length
    if not config.data.train_files or length > DataConfig().max_response_length:
        return None
    return (
        f"data.max_response_length={length}: answers are cut off after so many tokens, which suits the built-in sums; "
        "raise it if yours are longer"
    )


def _sampling(config: RunConfig) -> str | None:
    """Answers are drawn from some tokens, and trained on under the probabilities of all."""
    rollout = config.rollout
    cut = [name for name, keeps_all in (("top_p", 1), ("top_k", 0)) if rollout[name] != keeps_all]
    if not cut:
        return None
    return (
        f"{' and '.join(f'rollout.{name}={rollout[name]}' for name in cut)}: answers are drawn from the likeliest "
        "tokens alone but trained on under the probabilities of all, so that the gradient is biased "
        "(rollout/log_prob_gap shows how far); top_p=1 and top_k=0 have no such gap"
    )


def _estimator(config: RunConfig) -> str | None:
    """A recipe is a loss; the advantages it was published with are a setting of their own."""
    algorithm, recipe = config.algorithm, config.actor.recipe
    published, taken = RECIPES[recipe].estimator, algorithm.adv_estimator
    same = {taken, taken.removesuffix("_vectorized")}
    if taken.startswith("grpo") and not algorithm.norm_adv_by_std_in_grpo:
        same.add("dr_grpo")
    if recipe == "grpo" or published in same:
        return None
    return f"actor.recipe={recipe} is published with algorithm.adv_estimator={published}; this run takes {taken}"


def _kl(config: RunConfig) -> list[str]:
    """What a setting about the KL does not do."""
    actor, said = config.actor, []
    if actor.kl_in_loss and actor.kl_loss_type in ("kl", "k1"):
        said.append(
            f"actor.kl_loss_type={actor.kl_loss_type}: its gradient is 0 on average, so that nothing holds the policy "
            f"back; {actor.kl_loss_type}+ keeps its value and pulls"
        )
    if actor.ref_model_sync_steps and not (actor.kl_in_loss or config.algorithm.kl_in_reward):
        said.append(
            f"actor.ref_model_sync_steps={actor.ref_model_sync_steps} renews nothing: without a KL term there is no "
            "reference"
        )
    if actor.kl_loss_target is not None and not actor.kl_in_loss:
        said.append(f"actor.kl_loss_target={actor.kl_loss_target} steers nothing: actor.use_kl_loss is off")
    return said
