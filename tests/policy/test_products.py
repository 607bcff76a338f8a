"""Linear layers by oneDNN: the products and gradients of a plain loop, and only where they are meant to be used."""

import copy

import pytest
import torch
from torch import nn

from groupwise.policy import products
from groupwise.policy.products import FEWEST_ROWS, Product, take_faster_products

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


class Counted:
    """`Product` with a count of its calls."""

    def __init__(self):
        self.calls = 0

    def apply(self, *arguments):
        self.calls += 1
        return Product.apply(*arguments)


@pytest.fixture
def counted(monkeypatch):
    stand_in = Counted()
    monkeypatch.setattr(products, "Product", stand_in)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    return stand_in


def layer(bias=True, dtype=torch.float32):
    return nn.Linear(24, 40, bias=bias, dtype=dtype)


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(FEWEST_ROWS, 24), (3, 100, 24)])
def test_values_and_gradients_are_those_of_float64(counted, bias, shape):
    module = layer(bias)
    take_faster_products(module)
    states, weights = torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], 40)
    (module(states) * weights).sum().backward()
    exact = copy.deepcopy(module).double()
    of_states = states.detach().double().requires_grad_()
    expected = torch.nn.functional.linear(of_states, exact.weight, exact.bias)
    *of_weights, of_states_grad = torch.autograd.grad(
        (expected * weights.double()).sum(), [*exact.parameters(), of_states]
    )
    gradients = dict(zip(dict(exact.named_parameters()), of_weights, strict=True))
    assert counted.calls == 1
    # Sums of 24, 40 and 300 products of numbers near 1, in float32.
    torch.testing.assert_close(module(states).double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states.grad.double(), of_states_grad, rtol=1e-5, atol=1e-5)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad.double(), gradients[name], rtol=1e-5, atol=1e-4)


@needs_onednn
def test_frozen_weights_get_no_gradient(counted):
    module = layer()
    module.weight.requires_grad_(False)
    take_faster_products(module)
    states = torch.randn(FEWEST_ROWS, 24, requires_grad=True)
    module(states).sum().backward()
    assert module.weight.grad is None
    torch.testing.assert_close(states.grad[0], module.weight.sum(0), rtol=1e-5, atol=1e-5)
    assert module.bias.grad.unique().tolist() == [FEWEST_ROWS]


def test_few_rows_and_other_precisions_are_left_to_torch(counted):
    few, double = layer(), layer(dtype=torch.float64)
    for module in (few, double):
        take_faster_products(module)
    few(torch.randn(FEWEST_ROWS - 1, 24))
    double(torch.randn(FEWEST_ROWS, 24, dtype=torch.float64))
    assert counted.calls == 0
    assert "forward" not in vars(double)


@needs_onednn
def test_a_copy_computes_with_its_own_weights(counted):
    module = layer(bias=False)
    take_faster_products(module)
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.weight.zero_()
    states = torch.randn(FEWEST_ROWS, 24)
    assert not copied(states).any()
    assert module(states).any()


@pytest.mark.parametrize(
    ("maker", "capability", "expected"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_which_processors_it_is_for(monkeypatch, tmp_path, maker, capability, expected):
    about = tmp_path / "cpuinfo"
    if maker:
        about.write_text(f"vendor_id\t: {maker}\n")
    monkeypatch.setattr(products, "_ABOUT_THE_PROCESSOR", about)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert products.onednn_is_faster.__wrapped__() is expected


def test_elsewhere_a_model_is_left_alone(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    module = layer()
    take_faster_products(module)
    assert "forward" not in vars(module)
