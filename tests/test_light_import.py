"""Importing costs nothing that was not asked for."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import groupwise

SOURCE = Path(__file__).parents[1] / "src"
REPORT = "import json, sys, time; {}; print(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"


def run(code):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "GROUPWISE_CHECK_SHAPES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def loaded_by(code):
    return set(run(REPORT.format(code)))


def test_the_package_alone_loads_neither_torch_nor_numpy():
    more = loaded_by("import groupwise") - loaded_by("import importlib.metadata")
    assert more - set(sys.stdlib_module_names) == {"groupwise"}


def test_reading_a_config_loads_neither_torch_nor_numpy():
    more = loaded_by("import groupwise.config") - loaded_by("import importlib.metadata, dataclasses")
    assert more - set(sys.stdlib_module_names) == {"groupwise"}


def test_the_advantages_load_torch_and_numpy_and_no_other_package():
    more = loaded_by("import groupwise.advantages") - loaded_by("import torch, numpy")
    assert more - set(sys.stdlib_module_names) == {"groupwise"}


def test_computing_advantages_on_a_cpu_loads_nothing_more():
    use = "from groupwise.advantages import advantages_from_scores as a; a([1.0, 0.0], [0, 0])"
    plain = "import torch, numpy; torch.zeros(2).sort(); torch.zeros(2).isnan()"
    assert loaded_by(use) - loaded_by(plain) - set(sys.stdlib_module_names) == {"groupwise"}


def test_the_advantages_import_in_a_fifth_of_a_second_beyond_torch_and_numpy():
    timed = (
        "import json, time, torch, numpy; start = time.perf_counter(); import groupwise.advantages; "
        "print(json.dumps(time.perf_counter() - start))"
    )
    assert min(run(timed) for _ in range(5)) < 0.2


def test_every_public_name_is_found_where_it_lives():
    import groupwise.advantages as advantages

    for name in groupwise.__all__:
        if name != "__version__":
            assert getattr(groupwise, name) is getattr(advantages, name)
    assert set(dir(groupwise)) == set(groupwise.__all__)


def test_every_public_name_of_the_advantages_is_there():
    import groupwise.advantages as advantages

    for name in advantages.__all__:
        assert getattr(advantages, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error_that_says_what_does():
    with pytest.raises(AttributeError, match=r"module 'groupwise' has no attribute 'grpo'; it offers AlgoConfig"):
        groupwise.grpo  # noqa: B018


def test_the_version_is_the_installed_one_or_says_that_it_runs_from_source(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(groupwise, "version", lambda name: f"1.2.3 of {name}")
    assert groupwise.__version__ == "1.2.3 of groupwise"
    monkeypatch.setattr(groupwise, "version", absent)
    assert groupwise.__version__ == "0+source"


def test_shape_annotations_cost_nothing_unless_they_are_asked_for():
    code = (
        "import json, groupwise.types as t; from torch import Tensor; "
        "print(json.dumps([t.Float[Tensor, 'B T'] is Tensor, t.Bool is t.Int]))"
    )
    assert run(code) == [True, True]
