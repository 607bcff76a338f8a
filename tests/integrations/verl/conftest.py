"""Tests against the real verl, in the environment of `make test-integrations`. Elsewhere nothing is collected."""

import importlib
import importlib.util
import warnings
from pathlib import Path

import pytest

from integrations.verl.batches import ORCHESTRATED

HAS_VERL = importlib.util.find_spec("verl") is not None

collect_ignore_glob = [] if HAS_VERL else ["*.py"]

if HAS_VERL:
    with warnings.catch_warnings():
        # verl warns of every engine (Megatron, torchtitan, ...) that is not installed, Ray of its own deprecations.
        warnings.simplefilter("ignore")
        for module in ORCHESTRATED:
            importlib.import_module(module)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(autouse=True)
def _nothing_stays_installed():
    from groupwise.integrations.verl import uninstall

    yield
    uninstall()
