"""Everything Groupwise raises on purpose.

GroupwiseError
├── BadValueError          (also ValueError)              a caller's value: wrong length, unknown option, NaN label
│   ├── GroupHealthError                                  broken groups, refused by a strict check
│   └── NonFiniteScoreError                               a NaN or infinite score reached the orchestrator
├── UnknownNameError       (also ValueError, KeyError)    a name nothing is registered under; names the nearest
├── MissingFieldError      (also ValueError, KeyError)    a batch or a config lacks a field; says where it comes from
├── UnsupportedVersionError                               another package is installed in a version not known to work
└── TrainingStoppedError   (also RuntimeError)            a run cannot go on, such as after losses that are not finite

GroupwiseWarning           (a UserWarning)                the result is defined, but probably not what was meant
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches


class GroupwiseError(Exception):
    """The root: `except GroupwiseError` catches whatever this package raises on purpose."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which turns a sentence into a quoted one.
        return str(self.args[0]) if self.args else ""


class BadValueError(GroupwiseError, ValueError):
    """A value from the caller cannot be used; the message says which, why, and what to do."""


class GroupHealthError(BadValueError):
    """The groups of a batch are broken and the caller asked for that to be refused."""


class NonFiniteScoreError(BadValueError):
    """A score is NaN or infinite."""


class UnknownNameError(GroupwiseError, ValueError, KeyError):
    """Nothing is known under this name."""


class MissingFieldError(GroupwiseError, ValueError, KeyError):
    """A field that is needed is not there."""


class UnsupportedVersionError(GroupwiseError):
    """Another package is installed in a version whose insides an integration does not know."""


class TrainingStoppedError(GroupwiseError, RuntimeError):
    """A run cannot go on; what it had saved is kept."""


class GroupwiseWarning(UserWarning):
    """Something is off, but the result is still defined."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """`unknown_name("estimator", "grop", ["grpo"])`: unknown estimator 'grop'; the nearest is 'grpo'; known: grpo."""
    names = sorted(known)
    nearest = get_close_matches(str(name), names, n=1, cutoff=0.0)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
    return UnknownNameError(f"unknown {kind} {name!r}{hint}; known: {', '.join(names)}")


def unwritten(what: str, run_dir: object, error: OSError) -> TrainingStoppedError:
    """The end of a run that did not fit on the disk: nothing is lost that `--resume` does not make again."""
    return TrainingStoppedError(
        f"{what} could not be written to {run_dir} ({os_reason(error)}); make room there, and then: "
        f"groupwise train --resume {run_dir}"
    )


def os_reason(error: OSError) -> str:
    """`No space left on device`, without the words that libraries put around it."""
    return os.strerror(error.errno) if error.errno else str(error)
