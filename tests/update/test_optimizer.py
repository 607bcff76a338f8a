"""AdamW over bfloat16 parameters with float32 masters, against AdamW over the masters alone."""

import pytest
import torch

from groupwise.config import OptimConfig
from groupwise.update.optimizer import Optimizer

CONFIG = OptimConfig(lr=1e-2, weight_decay=0.1)
SHAPES = {"matrix": (5, 3), "bias": (3,), "unused": (2,)}


def made(seed=0):
    torch.manual_seed(seed)
    parameters = [(name, torch.nn.Parameter(torch.randn(shape).bfloat16())) for name, shape in SHAPES.items()]
    return parameters, Optimizer(parameters, CONFIG, grad_clip=0.0)


def backward(parameters, seed):
    """A micro-batch's gradients; the last parameter has no part in the loss."""
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in parameters[:-1]:
        gradient = torch.randn(parameter.shape, generator=generator).bfloat16()
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    return [parameter.grad.float() for _, parameter in parameters[:-1]]


def test_three_steps_of_two_micro_batches_are_those_of_adamw_over_float32_weights():
    parameters, optimizer = made()
    masters = [torch.nn.Parameter(parameter.detach().float()) for _, parameter in parameters[:-1]]
    reference = torch.optim.AdamW(
        masters, lr=CONFIG.lr, betas=CONFIG.betas, weight_decay=CONFIG.weight_decay, fused=True
    )
    for step in range(3):
        totals = [torch.zeros_like(master) for master in masters]
        for micro in range(2):
            gradients = backward(parameters, 2 * step + micro)
            totals = [total + gradient for total, gradient in zip(totals, gradients, strict=True)]
            optimizer.gather()
            assert all(parameter.grad is None for _, parameter in parameters)
        for master, total in zip(masters, totals, strict=True):
            master.grad = total
        norm = torch.cat([total.flatten() for total in totals]).norm().item()
        assert optimizer.step(CONFIG.lr) == pytest.approx(norm, rel=1e-6)
        reference.step()
        for (name, parameter), master in zip(parameters, masters, strict=False):
            assert torch.equal(optimizer._learned[name], master)
            assert torch.equal(parameter, master.bfloat16())


def test_before_the_first_step_the_state_has_masters_and_no_moments():
    parameters, optimizer = made()
    tensors, numbers = optimizer.state()
    assert tensors.keys() == {f"master.{name}" for name in SHAPES}
    assert numbers == {"num_updates": {}}
    backward(parameters, 0)
    optimizer.gather()
    optimizer.step(CONFIG.lr)
    tensors, numbers = optimizer.state()
    # What has no gradient has made no step.
    assert numbers == {"num_updates": {"matrix": 1, "bias": 1}}
    assert {name for name in tensors if name.startswith("exp_avg.")} == {"exp_avg.matrix", "exp_avg.bias"}


def test_an_optimiser_goes_on_where_another_stopped():
    parameters, optimizer = made()
    others, other = made(seed=1)
    for step in range(4):
        if step == 2:
            tensors, numbers = optimizer.state()
            other.load_state({name: tensor.clone() for name, tensor in tensors.items()}, numbers)
        for side, taught in ((optimizer, parameters), (other, others)):
            backward(taught, step)
            side.gather()
            side.step(CONFIG.lr)
    for name in SHAPES:
        assert torch.equal(other._learned[name], optimizer._learned[name])
