"""Tests against the real verl, in the environment of `make test-integrations`. Elsewhere nothing is collected."""

import importlib.util
import warnings
from pathlib import Path

import pytest

collect_ignore_glob = ["*.py"]

if importlib.util.find_spec("verl"):
    collect_ignore_glob = []
    with warnings.catch_warnings():
        # verl warns of every engine (Megatron, torchtitan, ...) that is not installed.
        warnings.simplefilter("ignore")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(autouse=True)
def _nothing_installed():
    yield
    if importlib.util.find_spec("verl"):
        from groupwise.integrations.verl import uninstall

        uninstall()
