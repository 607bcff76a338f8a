import pytest
import torch

from groupwise.policy import token_statistics

VOCAB, WIDTH = 23, 8


def example():
    head = torch.nn.Linear(WIDTH, VOCAB, bias=False, dtype=torch.float64)
    hidden = torch.randn(17, WIDTH, dtype=torch.float64, requires_grad=True)
    return head, hidden, torch.randint(VOCAB, (17,))


def by_hand(head, hidden, tokens, temperature):
    """One token at a time."""
    log_probs, entropies, squares = [], [], []
    for state, token in zip(hidden, tokens.tolist(), strict=True):
        weights = (head(state) / temperature).exp()
        probs = weights / weights.sum()
        log_probs.append(probs[token].log())
        entropies.append(-sum(p * p.log() for p in probs))
        squares.append(sum(p * p for p in probs).detach())
    return torch.stack(log_probs), torch.stack(entropies), torch.stack(squares)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("chunk_elements", [1, 5 * VOCAB, 10**6])
def test_values_and_gradients_are_those_by_hand_for_every_chunk(temperature, chunk_elements):
    head, hidden, tokens = example()
    found = token_statistics(
        head,
        hidden,
        tokens,
        VOCAB,
        temperature=temperature,
        entropy=True,
        sum_pi_squared=True,
        chunk_elements=chunk_elements,
    )
    expected = by_hand(head, hidden, tokens, temperature)
    weights = torch.randn(2, 17, dtype=torch.float64)
    gradients = []
    for log_probs, entropy, squares in ((found.log_probs, found.entropy, found.sum_pi_squared), expected):
        loss = (weights[0] * log_probs + weights[1] * entropy).sum()
        gradients.append(torch.autograd.grad(loss, [hidden, head.weight]))
        torch.testing.assert_close(log_probs, expected[0], atol=1e-13, rtol=0)
        torch.testing.assert_close(entropy, expected[1], atol=1e-13, rtol=0)
        torch.testing.assert_close(squares, expected[2], atol=1e-13, rtol=0)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_no_more_logits_exist_at_once_than_a_chunk():
    head, hidden, tokens = example()
    sizes = []

    def watched(states):
        sizes.append(len(states))
        return head(states)

    token_statistics(watched, hidden, tokens, VOCAB, chunk_elements=5 * VOCAB).log_probs.sum().backward()
    # Forward, and once more backward.
    assert sorted(sizes) == sorted([5, 5, 5, 2] * 2)


def test_half_precision_logits_are_normalised_in_float32():
    head, hidden, tokens = example()
    found = token_statistics(head.bfloat16(), hidden.detach().bfloat16(), tokens, VOCAB)
    assert found.log_probs.dtype == torch.float32
    with torch.no_grad():
        logits = head(hidden.bfloat16()).float()
    expected = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    torch.testing.assert_close(found.log_probs, expected, atol=1e-6, rtol=0)


def test_an_entropy_that_is_only_looked_at_has_no_gradient():
    head, hidden, tokens = example()
    found = token_statistics(head, hidden, tokens, VOCAB, entropy=True, entropy_gradient=False)
    torch.testing.assert_close(found.entropy, by_hand(head, hidden, tokens, 1.0)[1].detach(), atol=1e-13, rtol=0)
    assert not found.entropy.requires_grad
    assert found.log_probs.requires_grad
