"""The output layer, the softmax and the choice of a token in kernels, against the plain form."""

import pytest
import torch

from groupwise.policy import fused_head, token_statistics

VOCAB = 5003


@pytest.mark.parametrize("has_entropy", [False, True])
@pytest.mark.parametrize("chunk_elements", [1 << 29, 3 * VOCAB])
def test_log_probs_entropy_and_gradients_are_those_of_the_plain_form(device, monkeypatch, has_entropy, chunk_elements):
    # Two blocks of the vocabulary, the second not full; all tokens in a chunk, or three at a time.
    monkeypatch.setattr(fused_head, "_CHUNK_ELEMENTS", chunk_elements)
    hidden, weight = torch.randn(7, 16, device=device), torch.randn(VOCAB, 16, device=device)
    hidden.requires_grad_(), weight.requires_grad_()
    tokens, factors = torch.randint(VOCAB, (7,), device=device), torch.randn(2, 7, device=device)
    plain = token_statistics(
        lambda states: states @ weight.t(), hidden, tokens, VOCAB, temperature=0.7, entropy=True,
        entropy_gradient=has_entropy,
    )  # fmt: skip
    fused = fused_head.log_probs_and_entropy(hidden, weight, tokens, 0.7, entropy_gradient=has_entropy)
    found = []
    for log_probs, entropy in (fused, (plain.log_probs, plain.entropy)):
        loss = (factors[0] * log_probs).sum() + (factors[1] * entropy).sum()
        found.append((log_probs.detach(), entropy.detach(), *torch.autograd.grad(loss, [hidden, weight])))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()
