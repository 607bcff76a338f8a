"""Where prompts come from: built-in families of questions with a checkable answer, parquet and jsonl files."""

from groupwise.tasks.families import TASKS, Family, Question
from groupwise.tasks.files import BadRow, LoadedTasks, load_tasks
from groupwise.tasks.generated import GeneratedTasks, held_out_sample
from groupwise.tasks.settings import RunTasks, tasks_of
from groupwise.tasks.source import EpochTasks, PromptSource

__all__ = [
    "TASKS",
    "BadRow",
    "EpochTasks",
    "Family",
    "GeneratedTasks",
    "LoadedTasks",
    "PromptSource",
    "Question",
    "RunTasks",
    "held_out_sample",
    "load_tasks",
    "tasks_of",
]
