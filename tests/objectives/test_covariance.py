"""Which tokens clip_cov and kl_cov treat."""

import pytest
import torch

from groupwise.config import ActorConfig
from groupwise.errors import BadValueError
from groupwise.objectives import LossInputs, select_by_covariance
from objectives.batches import pack, random_answers
from oracles import objectives as oracle


@pytest.mark.parametrize("ratio", [1e-6, 0.1, 0.37, 1.0])
def test_kl_cov_takes_the_highest(ratio):
    for seed in range(6):
        answers = random_answers(seed)
        inputs = pack(answers)
        selected = select_by_covariance(inputs, ActorConfig(recipe="kl_cov", kl_cov_ratio=ratio))
        covariances = oracle.covariances(answers)
        number = max(1, int(len(covariances) * ratio))
        highest = sorted(range(len(covariances)), key=lambda t: -covariances[t])[:number]
        assert sorted(highest) == selected.nonzero()[:, 0].tolist()


def test_clip_cov_takes_all_between_the_bounds_where_it_may():
    for seed in range(6):
        answers = random_answers(seed, spread=0.1)
        config = ActorConfig(recipe="clip_cov", clip_cov_ratio=1.0, clip_cov_lb=0.1, clip_cov_ub=0.6, clip_ratio=9.0)
        selected = select_by_covariance(pack(answers), config)
        assert selected.tolist() == [0.1 < value < 0.6 for value in oracle.covariances(answers)]


def test_clip_cov_leaves_out_what_is_clipped_already():
    # Covariances (A - 0)(lp + 1.5) = 0.5 each; the ratio of the second token, e, is beyond the bound.
    log_probs = torch.tensor([-1.0, -1.0, -2.0, -2.0], dtype=torch.float64)
    old = torch.tensor([-1.0, -2.0, -2.0, -2.0], dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    ids = torch.zeros(4, dtype=torch.int64)
    inputs = LossInputs(log_probs, old, advantages, ids, ids[:1], per_token=True)
    config = ActorConfig(recipe="clip_cov", clip_cov_ratio=1.0, clip_cov_lb=0.4)
    assert select_by_covariance(inputs, config).tolist() == [True, False, True, True]


def test_clip_cov_draws_with_the_generator_it_is_given():
    answers = random_answers(1, num_answers=60)
    config = ActorConfig(recipe="clip_cov", clip_cov_ratio=0.05, clip_cov_lb=0.0)

    def draw(seed):
        return select_by_covariance(pack(answers), config, generator=torch.Generator().manual_seed(seed))

    num_tokens = len(pack(answers).log_probs)
    assert draw(0).sum().item() == int(0.05 * num_tokens)
    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))


def test_clip_cov_may_find_none():
    config = ActorConfig(recipe="clip_cov", clip_cov_lb=100.0, clip_cov_ub=200.0)
    assert not select_by_covariance(pack(random_answers(0)), config).any()


@pytest.mark.parametrize("recipe", ["clip_cov", "kl_cov"])
def test_masked_tokens_are_neither_picked_nor_counted(recipe):
    inputs = pack(random_answers(3))
    config = ActorConfig(recipe=recipe, clip_cov_ratio=1.0, clip_cov_lb=-1.0, kl_cov_ratio=0.5)
    expected = select_by_covariance(inputs, config)
    pads = torch.full((20,), float("nan"), dtype=torch.float64)
    mask = torch.cat([torch.ones(len(expected)), torch.zeros(20)]).bool()
    padded = LossInputs(
        torch.cat([inputs.log_probs, pads]),
        torch.cat([inputs.old_log_probs, pads]),
        inputs.advantages,
        torch.cat([inputs.sequence_ids, torch.zeros(20, dtype=torch.int64)]),
        inputs.prompt_ids,
        mask=mask,
    )
    torch.manual_seed(0)
    found = select_by_covariance(padded, config)
    assert torch.equal(found[:-20], expected)
    assert not found[-20:].any()
    off = torch.zeros_like(mask)
    assert not select_by_covariance(
        LossInputs(pads, None, pads[:1], off[:20].long(), off[:1].long(), mask=off[:20]), config
    ).any()


def test_without_old_log_probs_nothing_is_clipped_yet():
    answers = random_answers(2)
    config = ActorConfig(recipe="clip_cov", clip_cov_ratio=1.0, clip_cov_lb=0.0)
    inputs = pack(answers, old_log_probs=None)
    assert select_by_covariance(inputs, config).tolist() == [0.0 < value < 5.0 for value in oracle.covariances(answers)]


def test_other_losses_pick_no_tokens():
    with pytest.raises(BadValueError, match="for the loss modes 'clip_cov' and 'kl_cov' only"):
        select_by_covariance(pack(random_answers(0)), ActorConfig())
