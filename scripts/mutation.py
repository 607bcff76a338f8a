"""Mutation tests of the advantages: change one thing in the source, and see whether a test minds.

    make mutation                                        # all of it
    make mutation ONLY='groupwise.advantages.groups.*'   # one module

mutmut does the work; what it mutates stands in pyproject.toml under [tool.mutmut]. Two things are added. It passes
over decorated functions, which half of ours are: here the decorators stay on the function that chooses among the
mutants, and the mutants go without. And it starts pytest anew for every mutant, which takes longer than most tests:
here the tests are collected once, and the mutants are forked from there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import libcst as cst
import pytest
from _pytest.config import _prepareconfig
from mutmut.__main__ import cli
from mutmut.configuration import config
from mutmut.mutation import file_mutation
from mutmut.runners.harness import PytestRunner
from mutmut.utils.file_utils import change_cwd

_NATIVE = {"classmethod", "staticmethod"}

_skips = file_mutation.MutationVisitor._skip_node_and_children
_arrangement = file_mutation.function_trampoline_arrangement
_run_tests = PytestRunner.run_tests


def _is_native(function: cst.FunctionDef) -> bool:
    return len(function.decorators) == 1 and getattr(function.decorators[0].decorator, "value", "") in _NATIVE


def skip_node_and_children(visitor: Any, node: cst.CSTNode) -> bool:
    """As mutmut does, except that a decorated function is not passed over."""
    bare = node.with_changes(decorators=[]) if isinstance(node, cst.FunctionDef) else node
    return _skips(visitor, bare)


def arrange_trampoline(function: cst.FunctionDef, mutants: Iterable[Any], class_name: str | None) -> tuple[Any, ...]:
    """As mutmut does, except that the mutants of a decorated function have no decorators: they are called by it."""
    before, (trampoline, *copies), after, names = _arrangement(function, mutants, class_name=class_name)
    if not _is_native(function):
        copies = [copy.with_changes(decorators=[]) for copy in copies]
    return before, [trampoline, *copies], after, names


def warm_up(runner: Any) -> None:
    """Collect the tests once, in the process that every mutant is forked from."""
    with change_cwd("mutants"):
        arguments = ["--rootdir=.", "-q", *config().pytest_add_cli_args, *config().pytest_add_cli_args_test_selection]
        settings = _prepareconfig(arguments)
        settings._do_configure()
        runner.session = pytest.Session.from_config(settings)
        settings.hook.pytest_sessionstart(session=runner.session)
        settings.hook.pytest_collection(session=runner.session)


def run_tests(runner: Any, *, mutant_name: str | None, tests: Iterable[str]) -> int:
    """The tests that reach the mutated function, its module's own file first, until one fails."""
    if mutant_name is None:
        return _run_tests(runner, mutant_name=mutant_name, tests=tests)
    wanted = set(tests)
    module = mutant_name.rpartition(".")[0].rpartition(".")[2]
    items = [item for item in runner.session.items if item.nodeid in wanted]
    items.sort(key=lambda item: item.path.stem != f"test_{module}")
    with change_cwd("mutants"):
        for item, following in pairwise([*items, None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if runner.session.testsfailed:
                return 1
    return 0


if __name__ == "__main__":
    file_mutation.MutationVisitor._skip_node_and_children = skip_node_and_children
    file_mutation.function_trampoline_arrangement = arrange_trampoline
    PytestRunner.warm_up = warm_up
    PytestRunner.run_tests = run_tests
    sys.exit(cli())
