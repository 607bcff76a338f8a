"""Compiled layers under rows of many lengths: few forms, and the numbers of plain passes. No code is generated."""

from functools import partial

import pytest
import torch

from gpu_path import ADVANTAGES, ENTROPY, packed_gradient, plain_gradient, relative_gap, sized_policy
from groupwise.policy import compiled
from groupwise.update import split, step
from groupwise.update.pack import Form
from groupwise.update.split import SplitGroups
from tiny_models import random_groups


@pytest.fixture(autouse=True)
def _traced_only(monkeypatch):
    """The compiler's front half: what it would compile, run operation by operation."""
    compiled._compiled.cache_clear()
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(split, "_lengths_with_own_form", [])
    build = partial(SplitGroups.build, compiles=True, checkpoints=False)
    monkeypatch.setattr(step, "choose_form", lambda *_: Form(build, lambda num_tokens: -(-num_tokens // 64) * 64))
    yield
    compiled._compiled.cache_clear()
    torch._dynamo.reset()


@pytest.mark.filterwarnings("default")
def test_two_lengths_have_a_form_each_and_all_others_one_together():
    policy = sized_policy(dtype=torch.float64, device="cpu", compiles=True)
    # Rows of 128, 192, 256, 320, 128 again, 448 and 256 again.
    num_forms, before = [], policy.num_compiled
    for longest in (25, 60, 90, 110, 25, 170, 90):
        groups = random_groups([30, 20], [[longest, longest // 2], [longest // 4]])
        _, expected = plain_gradient(policy, ENTROPY, groups, ADVANTAGES[:3])
        _, found = packed_gradient(policy, ENTROPY, groups, ADVANTAGES[:3])
        assert relative_gap(found, expected) < 1e-12
        num_forms.append(policy.num_compiled - before)
    assert num_forms == [1, 2, 3, 3, 3, 3, 3]
    assert split._lengths_with_own_form == [128, 192]


def test_layers_that_are_not_compiled_ask_for_no_form():
    groups = SplitGroups.build(
        [range(3)], [range(3, 9)], [0], 64, torch.device("cpu"), compiles=False, checkpoints=False
    )
    assert not groups.is_dynamic
    assert split._lengths_with_own_form == []
