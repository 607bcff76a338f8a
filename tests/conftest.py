"""Every annotated call of the package is checked against its shapes and types while the tests run."""

import os
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

# A GPU machine may have neither package: there the shapes go unchecked.
if os.environ.setdefault("GROUPWISE_CHECK_SHAPES", "1" if find_spec("jaxtyping") and find_spec("beartype") else ""):
    from jaxtyping import install_import_hook

    # Triton compiles its kernels from their source: those modules stay as they are.
    package = Path(__file__).parents[1] / "src" / "groupwise"
    modules = [
        f"groupwise.{stage}.{path.stem}"
        for stage in ("advantages", "objectives")
        for path in (package / stage).glob("*.py")
        if path.stem != "__init__"
    ]
    install_import_hook(modules, "shape_checks.checked")

import torch

hypothesis.settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=8, derandomize=True, database=None)
hypothesis.settings.load_profile("default")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
