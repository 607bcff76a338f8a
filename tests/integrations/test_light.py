"""The integrations cost nothing until they are used."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def test_the_verl_integration_loads_neither_verl_nor_ray_before_install():
    code = "import sys, groupwise.integrations.verl; print(sorted({'verl', 'ray', 'trl', 'triton'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "GROUPWISE_CHECK_SHAPES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
