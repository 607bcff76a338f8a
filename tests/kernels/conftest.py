"""The kernels against their torch forms: on a GPU where there is one, else in Triton's interpreter on the CPU.

Triton is not part of the plain test environment: without it nothing here is collected.
"""

import os
from importlib.util import find_spec

import pytest
import torch

ON_GPU = torch.cuda.is_available()
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]
if not ON_GPU:
    # Read when triton is first imported.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device():
    return torch.device("cuda" if ON_GPU else "cpu")
