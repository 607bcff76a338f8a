"""Two real processes: each must judge its own answers by those of both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from groupwise.advantages import advantages_from_scores

TESTS = Path(__file__).parents[2]
REWARDS = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def run(folder, estimator):
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    script = str(Path(__file__).with_name("two_processes.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command += [str(folder), estimator]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("estimator", ["grpo", "opo"])
def test_a_group_split_over_two_processes_is_one_group(tmp_path, estimator):
    first, second = run(tmp_path, estimator)
    ours = torch.tensor(first["ours"] + second["ours"])
    options = {"convention": "trl"} if estimator == "grpo" else {"lengths": first["lengths"] + second["lengths"]}
    expected = advantages_from_scores(REWARDS, [0] * 8, estimator, **options)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
    if estimator == "grpo":
        torch.testing.assert_close(ours, torch.tensor(first["theirs"] + second["theirs"]), rtol=0, atol=1e-6)
    # Every process logs all answers, as TRL does.
    torch.testing.assert_close(torch.tensor(second["logged"]), expected, rtol=0, atol=1e-6)
