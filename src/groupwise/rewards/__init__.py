"""What an answer is worth: groups in, the same groups with scores out."""

from groupwise.rewards.loading import run_file
from groupwise.rewards.task_reward import CHECKERS, task_reward
from groupwise.rewards.user_reward import reward_of, user_reward, user_scorer
from groupwise.rewards.verdicts import Item, Scorer, Verdict, requiring, scored_by

__all__ = [
    "CHECKERS",
    "Item",
    "Scorer",
    "Verdict",
    "requiring",
    "reward_of",
    "run_file",
    "scored_by",
    "task_reward",
    "user_reward",
    "user_scorer",
]
