"""What an answer is worth: groups in, the same groups with scores out."""

from groupwise.rewards.judging import Item, Judge, Verdict, judged_by
from groupwise.rewards.task_reward import CHECKERS, task_reward

__all__ = ["CHECKERS", "Item", "Judge", "Verdict", "judged_by", "task_reward"]
