"""Where a fused kernel takes over: on a GPU with Triton and groups it can hold, and never elsewhere."""

from types import SimpleNamespace

import pytest
import torch

from groupwise.advantages import CONVENTIONS, Groups, group_relative, kernels
from groupwise.advantages.recurrences import backward_scan
from groupwise.advantages.rows import spread_over_tokens, sum_rewards
from samples import f64


def on_a_gpu(numel=3):
    return SimpleNamespace(is_cuda=True, numel=lambda: numel)


@pytest.fixture
def triton(monkeypatch):
    """A machine with Triton whose kernel modules are stood in for by recorders."""
    calls = []

    def stand_in(module):
        def kernel(function):
            return lambda *given: calls.append((module.rpartition(".")[2], function, given)) or "from the kernel"

        names = ("sum_rewards", "spread_over_tokens", "group_moments", "group_relative", "backward_scan")
        return SimpleNamespace(**{name: kernel(name) for name in names})

    monkeypatch.setattr(kernels, "import_module", stand_in)
    monkeypatch.setattr(kernels, "_has_triton", lambda: True)
    return calls


def dispatch(like, groups):
    """Every kernel's gate, with `like` as the tensor that decides."""
    dtypes = (torch.float32, torch.float32)
    return {
        "sum_rewards": kernels.sum_rewards(like),
        "spread_over_tokens": kernels.spread_over_tokens("values", like, torch.float32),
        "group_moments": kernels.group_moments(groups, like),
        "group_relative": kernels.group_relative(like, groups, 1, 1e-6, scaled=True, raw_singletons=False),
        "backward_scan": kernels.backward_scan(like, None, None, "mask", (1.0, 1.0), dtypes),
    }


def test_on_a_gpu_with_triton_the_kernels_take_over_with_what_was_given(triton):
    groups, like = Groups.of(["a", "a", "b"]), on_a_gpu()
    assert set(dispatch(like, groups).values()) == {"from the kernel"}
    assert triton == [
        ("rows", "sum_rewards", (like,)),
        ("rows", "spread_over_tokens", ("values", like, torch.float32)),
        ("statistics", "group_moments", (groups, like)),
        ("statistics", "group_relative", (like, groups, 1, 1e-6, True, False)),
        ("scan", "backward_scan", (like, None, None, "mask", (1.0, 1.0), (torch.float32, torch.float32))),
    ]


def test_on_a_cpu_no_kernel_runs(triton):
    assert set(dispatch(torch.zeros(3), Groups.of(["a", "a", "b"])).values()) == {None}


def test_an_empty_tensor_is_left_to_torch(triton):
    assert set(dispatch(on_a_gpu(numel=0), Groups.of([])).values()) == {None}


def test_without_triton_no_kernel_runs(triton, monkeypatch):
    monkeypatch.setattr(kernels, "_has_triton", lambda: False)
    assert set(dispatch(on_a_gpu(), Groups.of(["a", "a", "b"])).values()) == {None}


@pytest.mark.parametrize(("size", "fits"), [(kernels.LARGEST_GROUP, True), (kernels.LARGEST_GROUP + 1, False)])
def test_groups_too_large_to_sort_in_registers_are_left_to_torch(triton, size, fits):
    found = dispatch(on_a_gpu(), Groups.of([0] * size + [1]))
    assert (found["group_moments"] == found["group_relative"] == "from the kernel") == fits
    assert found["sum_rewards"] == "from the kernel"


def test_triton_is_looked_for_and_not_imported(monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "find_spec", asked.append)
    kernels._has_triton.cache_clear()
    assert kernels._has_triton() is False
    kernels._has_triton.cache_clear()
    monkeypatch.setattr(kernels, "find_spec", lambda name: asked.append(name) or "a spec")
    assert kernels._has_triton() is True
    kernels._has_triton.cache_clear()
    assert asked == ["triton", "triton"]


def test_the_torch_forms_hand_on_what_a_kernel_gives(monkeypatch):
    scores, groups, mask = f64([1.0, 2.0]), Groups.of([0, 0]), torch.ones(2, 1)
    monkeypatch.setattr(kernels, "sum_rewards", lambda rewards: f64([7.0, 8.0]))
    assert sum_rewards(torch.zeros(2, 1)).tolist() == [7.0, 8.0]
    monkeypatch.setattr(kernels, "spread_over_tokens", lambda values, mask, dtype: torch.full((2, 1), 9.0))
    assert spread_over_tokens(scores, mask, torch.float32).tolist() == [[9.0], [9.0]]
    monkeypatch.setattr(kernels, "group_moments", lambda groups, values: (f64([0.5]), f64([0.25]), f64([4.0])))
    moments = groups.moments(scores)
    assert (moments.means.tolist(), moments.stds().tolist()) == ([0.75], [2.0])
    assert moments.rises.tolist() == [0.5, 1.5]
    monkeypatch.setattr(kernels, "group_relative", lambda *given, **options: f64([3.0, 4.0]))
    assert group_relative(scores, groups, CONVENTIONS["trl"]).tolist() == [3.0, 4.0]
    monkeypatch.setattr(kernels, "backward_scan", lambda *given: (torch.ones(2, 1), torch.zeros(2, 1)))
    assert backward_scan(mask, None, None, mask)[0].tolist() == [[1.0], [1.0]]


def test_the_settings_of_a_convention_reach_the_kernel(monkeypatch):
    seen = []

    def kernel(scores, groups, ddof, eps, *, scaled, raw_singletons):
        seen.append((ddof, eps, scaled, raw_singletons))
        return scores

    monkeypatch.setattr(kernels, "group_relative", kernel)
    scores, groups = f64([1.0, 2.0]), Groups.of([0, 0])
    group_relative(scores, groups, CONVENTIONS["verl"])
    group_relative(scores, groups, CONVENTIONS["deepseekmath"], 0.5)
    group_relative(scores, groups, CONVENTIONS["verl"], None, False)
    group_relative(scores, groups, CONVENTIONS["dr_grpo"])
    assert seen == [(1, 1e-6, True, True), (0, 0.5, True, False), (1, 1e-6, False, True), (1, 1e-6, False, False)]
    # Leave-one-out has no kernel.
    assert group_relative(scores, groups, CONVENTIONS["nemo_rl"]).tolist() == [-1.0, 1.0]
    assert len(seen) == 4
