"""Where a fused kernel takes over: on a GPU with Triton and groups it can hold, and never elsewhere."""

from contextlib import nullcontext
from inspect import isfunction
from types import SimpleNamespace

import pytest
import torch

from groupwise.advantages import (
    CONVENTIONS,
    Groups,
    compute_multi_turn_optimal_token_baseline_advantage,
    compute_optimal_token_baseline_advantage,
    group_relative,
    kernels,
)
from groupwise.advantages.best_of_k import grpo_passk
from groupwise.advantages.recurrences import backward_scan
from groupwise.advantages.rows import spread_over_tokens, sum_rewards
from groupwise.advantages.whitening import whiten_answers
from groupwise.errors import GroupwiseWarning
from samples import f64


class OnAGpu:
    """A CUDA tensor as far as the gates look at it."""

    is_cuda = True

    def __init__(self, numel=3, rows=3, gpu=0):
        self._numel, self._rows, self.device = numel, rows, torch.device("cuda", gpu)

    def numel(self):
        return self._numel

    def __len__(self):
        return self._rows


NAMES = [name for name, gate in vars(kernels).items() if isfunction(gate) and not name.startswith("_")]


@pytest.fixture
def triton(monkeypatch):
    """A machine with Triton whose kernel modules are stood in for by recorders."""
    calls = []

    def stand_in(module):
        def kernel(function):
            return lambda *given: calls.append((module.rpartition(".")[2], function, given)) or "from the kernel"

        return SimpleNamespace(**{name: kernel(name) for name in NAMES})

    kernels._module.cache_clear()
    monkeypatch.setattr(kernels, "import_module", stand_in)
    monkeypatch.setattr(kernels, "_has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    yield calls
    kernels._module.cache_clear()


def dispatch(like, groups):
    """Every kernel's gate, with `like` as the tensor that decides."""
    dtypes = (torch.float32, torch.float32)
    tokens = (like, "mask", "log_probs", "squares", None)
    return {
        "sum_rewards": kernels.sum_rewards(like),
        "spread_over_tokens": kernels.spread_over_tokens("values", like, torch.float32),
        "group_moments": kernels.group_moments(groups, like),
        "group_relative": kernels.group_relative(like, groups, 1, 1e-6, scaled=True, raw_singletons=False),
        "best_over_second": kernels.best_over_second(like, groups, 1e-6, scaled=True),
        "whiten_answers": kernels.whiten_answers(like, "lengths", 1e-8),
        "token_baselines": kernels.token_baselines(tokens, "part", groups, 0.5, torch.half, handle_zero_tail=True),
        "backward_scan": kernels.backward_scan(like, None, None, "mask", (1.0, 1.0), dtypes),
    }


def test_on_a_gpu_with_triton_the_kernels_take_over_with_what_was_given(triton):
    groups, like, half = Groups.of(["a", "a", "b"]), OnAGpu(), torch.half
    assert set(dispatch(like, groups).values()) == {"from the kernel"}
    assert triton == [
        ("rows", "sum_rewards", (like,)),
        ("rows", "spread_over_tokens", ("values", like, torch.float32)),
        ("statistics", "group_moments", (groups, like)),
        ("statistics", "group_relative", (like, groups, 1, 1e-6, True, False)),
        ("statistics", "best_over_second", (like, groups, 1e-6, True)),
        ("whitening", "whiten_answers", (like, "lengths", 1e-8)),
        ("columns", "token_baselines", ((like, "mask", "log_probs", "squares", None), "part", groups, 0.5, half, True)),
        ("scan", "backward_scan", (like, None, None, "mask", (1.0, 1.0), (torch.float32, torch.float32))),
    ]


def test_on_a_cpu_no_kernel_runs(triton):
    assert set(dispatch(torch.zeros(3), Groups.of(["a", "a", "b"])).values()) == {None}


def test_an_empty_tensor_is_left_to_torch(triton):
    assert set(dispatch(OnAGpu(numel=0), Groups.of([])).values()) == {None}


def test_a_tensor_on_another_than_the_current_gpu_is_left_to_torch(triton):
    assert set(dispatch(OnAGpu(gpu=1), Groups.of(["a", "a", "b"])).values()) == {None}


def test_without_triton_no_kernel_runs(triton, monkeypatch):
    monkeypatch.setattr(kernels, "_has_triton", lambda: False)
    assert set(dispatch(OnAGpu(), Groups.of(["a", "a", "b"])).values()) == {None}


@pytest.mark.parametrize(("size", "fits"), [(kernels.LARGEST_GROUP, True), (kernels.LARGEST_GROUP + 1, False)])
def test_groups_too_large_to_sort_in_registers_are_left_to_torch(triton, size, fits):
    found = dispatch(OnAGpu(), Groups.of([0] * size + [1]))
    of_groups = ("group_moments", "group_relative", "best_over_second")
    assert {found[name] for name in of_groups} == {"from the kernel" if fits else None}
    assert {found[name] for name in found if name not in of_groups} == {"from the kernel"}


@pytest.mark.parametrize(("rows", "fits"), [(kernels.LARGEST_BATCH, True), (kernels.LARGEST_BATCH + 1, False)])
def test_batches_too_large_to_sort_in_registers_are_left_to_torch(triton, rows, fits):
    found = kernels.whiten_answers(OnAGpu(rows, rows), None, 1e-8)
    assert found == ("from the kernel" if fits else None)


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
    monkeypatch.setattr(kernels, "best_over_second", lambda scores, groups, eps, scaled: scores + eps + scaled)
    assert grpo_passk(scores, groups, epsilon=0.5).tolist() == [2.5, 3.5]
    assert grpo_passk(scores, groups, norm_adv_by_std_in_grpo=False).tolist() == [1.0 + 1e-6, 2.0 + 1e-6]


@pytest.mark.parametrize(("num_tokens", "warns"), [(0.0, True), (1.0, True), (2.0, False)])
def test_whitening_by_a_kernel_still_warns_of_too_few_tokens(num_tokens, warns, monkeypatch):
    values, lengths = f64([1.0, 2.0]), torch.tensor([1, 1])
    given = []
    monkeypatch.setattr(kernels, "whiten_answers", lambda *x: given.append(x) or (f64([5.0, 6.0]), f64(num_tokens)))
    with pytest.warns(GroupwiseWarning, match=rf"over {num_tokens:.0f} response") if warns else nullcontext():
        assert whiten_answers(values, lengths).tolist() == [5.0, 6.0]
    assert given == [(values, lengths, 1e-8)]


def test_baselines_by_columns_may_come_from_a_kernel_and_those_by_turns_may_not(monkeypatch):
    ones, given = torch.ones(2, 3), []
    result = (torch.zeros(2, 3), torch.ones(2, 3))
    monkeypatch.setattr(kernels, "token_baselines", lambda *x, **more: given.append((x, more)) or result)
    assert compute_optimal_token_baseline_advantage(ones, ones, [0, 0], -ones, ones) is result
    (tokens, takes_part, groups, *rest), more = given.pop()
    assert all(x is y for x, y in zip(tokens[:2], (ones, ones), strict=True))
    assert (takes_part, groups.sizes.tolist()) == (None, [2])
    assert (rest, more) == ([1e-8, torch.float32], {"handle_zero_tail": True})
    failed = [True, False]
    compute_optimal_token_baseline_advantage(ones, ones.half(), [0, 0], -ones, ones, None, False, 0.5, failed=failed)
    (_, takes_part, _, *rest), more = given.pop()
    assert (takes_part.tolist(), rest, more) == ([False, True], [0.5, torch.float32], {"handle_zero_tail": False})
    by_turns = compute_multi_turn_optimal_token_baseline_advantage(ones, ones, [0, 0], -ones, ones)
    assert by_turns[0].shape == (2, 3)
    assert not given


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
