"""verl installs Groupwise by itself while it is imported: in a fresh process, and in a process that Ray starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

# Prints where verl's registry, module attribute and orchestrator come from.
LOOK = """
def look():
    import warnings
    warnings.simplefilter("ignore")
    from verl.trainer.ppo import core_algos, ray_trainer
    found = core_algos.get_adv_estimator_fn("grpo"), core_algos.compute_gae_advantage_return
    return [f.__module__ for f in (*found, ray_trainer.compute_advantage)] + sorted(core_algos.ADV_ESTIMATOR_REGISTRY)
"""
HERE = LOOK + "print(*look())"
IN_RAY = LOOK + (
    "import ray\n"
    "ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)\n"
    "print(*ray.get(ray.remote(look).remote()))\n"
)
OURS = ["groupwise.advantages.outcome_api", "groupwise.advantages.token_api", "groupwise.integrations.verl"]
VERLS = ["verl.trainer.ppo.core_algos"] * 2 + ["verl.trainer.ppo.ray_trainer"]


def output_of(code, modules, more_path=""):
    path = os.pathsep.join([str(TESTS.parent / "src"), more_path])
    environment = {**os.environ, "PYTHONPATH": path, "VERL_USE_EXTERNAL_MODULES": modules, "GROUPWISE_CHECK_SHAPES": ""}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.split("\n")[-2].split()


@pytest.mark.parametrize("code", [HERE, IN_RAY], ids=["here", "in Ray"])
def test_verl_installs_groupwise_while_it_is_imported(code):
    found = output_of(code, "groupwise.integrations.verl_autoinstall")
    assert found[:3] == OURS
    assert "dr_grpo" in found


def test_without_the_variable_verl_is_as_it_was():
    found = output_of(HERE, "")
    assert found[:3] == VERLS
    assert "dr_grpo" not in found


def test_estimators_of_ones_own_come_along(tmp_path):
    (tmp_path / "my_estimators.py").write_text(
        "from groupwise.advantages import register_outcome_estimator\n"
        "register_outcome_estimator('raw_score')(lambda scores, groups: scores)\n"
    )
    modules = "my_estimators,groupwise.integrations.verl_autoinstall"
    assert "raw_score" in output_of(HERE, modules, str(tmp_path))
