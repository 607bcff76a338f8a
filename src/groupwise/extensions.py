"""A user's own estimators, losses and models: files and modules imported before a run looks at its settings."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from groupwise.errors import BadValueError
from groupwise.rewards import run_file


def import_extensions(places: Iterable[str]) -> None:
    """Run every .py file and import every module that `model.external_lib` names.

    What they register (`register_adv_est`, `register_outcome_estimator`, `register_policy_loss`, a model class of
    transformers') can then be named in the settings.
    """
    for place in places:
        setting = f"model.external_lib={place}"
        if place.endswith(".py"):
            run_file(place, setting)
            continue
        try:
            import_module(place)
        except (Exception, SystemExit) as problem:  # the user's code may raise whatever it likes
            raise BadValueError(
                f"{setting}: importing it raised {type(problem).__name__}: {problem}; install the module, or name a "
                ".py file"
            ) from problem
