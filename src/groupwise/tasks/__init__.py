"""Where prompts come from: built-in families of questions with a checkable answer, parquet and jsonl files."""

from groupwise.tasks.families import TASKS, Family, Question
from groupwise.tasks.generated import GeneratedTasks, held_out_sample
from groupwise.tasks.source import EpochTasks, PromptSource

__all__ = ["TASKS", "EpochTasks", "Family", "GeneratedTasks", "PromptSource", "Question", "held_out_sample"]
