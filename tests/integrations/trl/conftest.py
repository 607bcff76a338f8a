"""Tests against the real TRL, in the environment of `make test-integrations`. Elsewhere nothing is collected."""

import importlib.util
import os
from pathlib import Path

import pytest

HAS_TRL = importlib.util.find_spec("trl") is not None
collect_ignore_glob = [] if HAS_TRL else ["*.py"]
if HAS_TRL:
    # Nothing here needs the network, compiled kernels or a second thread pool. Where nothing is collected, other tests
    # do need a compiler.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
            # TRL's and its dependencies' warnings are theirs; ours stay errors.
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            item.add_marker(pytest.mark.filterwarnings("error::groupwise.errors.GroupwiseWarning"))


@pytest.fixture
def make_trainer(tmp_path):
    from integrations.trl.tiny import tiny_trainer

    return lambda cls, reward_funcs, **kwargs: tiny_trainer(cls, reward_funcs, str(tmp_path), **kwargs)
