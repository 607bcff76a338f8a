"""The kernels compile for a Hopper GPU on a machine that has none."""

import os
import subprocess
import sys
from pathlib import Path


def test_every_kernel_compiles_to_hopper_machine_code_those_of_the_advantages_without_fused_multiply_add():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "GROUPWISE_CHECK_SHAPES": ""}
    script = Path(__file__).with_name("compile_for_hopper.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    # 6 sums, 12 spreads, 4 widths of 3 group kernels, 6 whitenings, 16 scans, 8 walks and 4 judgements; of decoding 3
    # attentions, a merge and 2 of sampling; of the update a merge, 2 of adding up and 3 of the head
    assert done.stdout.strip() == "76 forms compiled"
