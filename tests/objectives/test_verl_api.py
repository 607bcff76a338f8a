"""verl's contract: padded tensors, configs of every kind, the registry."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from groupwise.config import ActorConfig
from groupwise.errors import BadValueError, MissingFieldError, UnknownNameError
from groupwise.objectives import (
    LOSS_MODES,
    POLICY_LOSS_REGISTRY,
    Totals,
    agg_loss,
    get_policy_loss_fn,
    objective,
    register_policy_loss,
)
from objectives.batches import MAX_LENGTH, pack, random_answers

NUMBERS = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "dro_beta": 0.5}


@pytest.fixture
def _registry():
    """What a test registers is gone after it."""
    before = dict(POLICY_LOSS_REGISTRY)
    yield
    POLICY_LOSS_REGISTRY.clear()
    POLICY_LOSS_REGISTRY.update(before)


def padded(answers):
    """[B, T] tensors with NaN in the pads: old, lp, advantages, mask."""
    rows, width = len(answers), MAX_LENGTH
    fields = torch.full((3, rows, width), float("nan"), dtype=torch.float64)
    mask = torch.zeros(rows, width)
    for i, answer in enumerate(answers):
        mask[i, : len(answer.lp)] = 1
        for j, values in enumerate((answer.old, answer.lp, [answer.advantage] * len(answer.lp))):
            fields[j, i, : len(answer.lp)] = torch.tensor(values, dtype=torch.float64)
    old, log_prob, advantages = fields
    return old, log_prob.requires_grad_(), advantages, mask


@pytest.mark.parametrize("name", sorted(set(LOSS_MODES) - {"clip_cov", "kl_cov"}))
def test_padded_and_packed_are_the_same(name):
    for seed in range(4):
        answers = random_answers(seed)
        old, log_prob, advantages, mask = padded(answers)
        loss, metrics = get_policy_loss_fn(name)(old, log_prob, advantages, mask, config=NUMBERS)
        inputs = pack(answers, entropy=None)
        config = ActorConfig(loss_mode=name, loss_agg_mode=LOSS_MODES[name].aggregate, **NUMBERS)
        outputs = objective(inputs, config, Totals.of(inputs))
        assert loss.item() == pytest.approx(outputs.loss.item(), rel=1e-12)
        gradients = [
            torch.autograd.grad(value, leaf)[0] for value, leaf in ((loss, log_prob), (outputs.loss, inputs.log_probs))
        ]
        assert gradients[0][mask.bool()].tolist() == pytest.approx(gradients[1].tolist(), rel=1e-12, abs=1e-15)
        assert (gradients[0][~mask.bool()] == 0).all()
        for key, value in metrics.items():
            assert isinstance(value, float)
            assert value == pytest.approx(outputs.metrics[key].item())


@pytest.mark.parametrize(
    "kind", [dict, OmegaConf.create, lambda numbers: ActorConfig(**numbers), lambda numbers: SimpleNamespace(**numbers)]
)
def test_every_kind_of_config_is_read(kind):
    batch = padded(random_answers(0))
    for name in ("vanilla", "dro"):
        loss, _ = get_policy_loss_fn(name)(*batch, config=kind(NUMBERS))
        plain, _ = get_policy_loss_fn(name)(*batch, config=NUMBERS)
        assert loss.item() == plain.item()


def test_without_a_config_the_defaults_are_0_2_and_3():
    batch = padded(random_answers(0, spread=1.0))
    given = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    assert get_policy_loss_fn("vanilla")(*batch)[0] == get_policy_loss_fn("vanilla")(*batch, config=given)[0]


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("name", LOSS_MODES)
def test_nothing_but_masked_positions_is_0(name, mask_dtype):
    nan = torch.full((2, 3), float("nan"), requires_grad=True)
    off = torch.zeros(2, 3, dtype=mask_dtype)
    loss, _ = get_policy_loss_fn(name)(nan, nan, nan.detach(), off, config=NUMBERS)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(nan.grad, torch.zeros(2, 3))


def test_the_counts_of_the_step_make_micro_batches_add_up():
    answers = [answer for answer in random_answers(1) if answer.lp]
    batch = padded(answers)
    info = {"batch_num_tokens": int(batch[3].sum()), "global_batch_size": len(answers), "loss_scale_factor": 16}
    for name in sorted(set(LOSS_MODES) - {"clip_cov", "kl_cov"}):
        function = get_policy_loss_fn(name)
        for mode in ("token-mean", "seq-mean-token-sum-norm", "seq-mean-token-mean"):
            config = {**NUMBERS, "global_batch_info": info}
            whole, _ = function(*batch, mode, config)
            parts = [
                function(*(tensor[i : i + 2] for tensor in batch), mode, config)[0] for i in range(0, len(answers), 2)
            ]
            assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-12)


def test_a_loss_scale_factor_beside_the_batch_info_is_read():
    batch = padded(random_answers(0))
    by_width = get_policy_loss_fn("gpg")(*batch, "seq-mean-token-sum-norm")[0]
    by_constant = get_policy_loss_fn("gpg")(*batch, "seq-mean-token-sum-norm", {"loss_scale_factor": 2 * MAX_LENGTH})[0]
    assert by_width.item() == pytest.approx(2 * by_constant.item())


def test_agg_loss_counts_nothing_under_the_mask():
    losses = torch.tensor([[1.0, float("nan")], [3.0, 5.0]], requires_grad=True)
    mask = torch.tensor([[1, 0], [1, 1]])
    # the answers have means 1 and 4
    loss = agg_loss(losses, mask, "seq-mean-token-mean")
    loss.backward()
    assert loss.item() == pytest.approx(2.5)
    assert losses.grad.tolist() == [[0.5, 0.0], [0.25, 0.25]]


def test_agg_loss_refuses_what_it_cannot_know():
    losses = torch.ones(2, 2)
    with pytest.raises(BadValueError, match="batch_num_tokens, the tokens of all processes, is required when dp_size"):
        agg_loss(losses, losses, "token-mean", dp_size=2)
    with pytest.raises(
        BadValueError, match="global_batch_size, the answers of all processes, is required when dp_size"
    ):
        agg_loss(losses, losses, "seq-mean-token-sum", dp_size=2)
    with pytest.raises(MissingFieldError, match="'prompt-mean' needs"):
        agg_loss(losses, losses, "prompt-mean")
    with pytest.raises(UnknownNameError, match="unknown loss_agg_mode 'mean'"):
        agg_loss(losses, losses, "mean")


@pytest.mark.parametrize("name", LOSS_MODES)
def test_a_registered_function_says_what_it_is(name):
    function = get_policy_loss_fn(name)
    assert function.__name__ == f"compute_policy_loss_{name}"
    assert function.__doc__ == LOSS_MODES[name].surrogate.__doc__
    assert inspect.signature(function).parameters["loss_agg_mode"].default == LOSS_MODES[name].aggregate


@pytest.mark.usefixtures("_registry")
def test_the_registry_keeps_what_it_was_given():
    @register_policy_loss("mine")
    def mine(old_log_prob, log_prob, advantages, response_mask, **kwargs):
        return agg_loss(-log_prob, response_mask, "token-sum"), {}

    assert get_policy_loss_fn("mine") is mine
    assert register_policy_loss("mine")(mine) is mine
    with pytest.raises(BadValueError, match=r"policy loss 'mine' is already registered as .*mine; register yours"):
        register_policy_loss("mine")(lambda: None)


def test_an_unknown_loss_names_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown policy loss 'clipcov'; the nearest is 'clip_cov'"):
        get_policy_loss_fn("clipcov")
