import torch

from groupwise.rollout.sampling import draw, kept
from groupwise.types import Sampling

LOGITS = torch.tensor([[0.5, 0.2, 0.2, 0.1]]).log()


def tokens_of(numbers, **settings):
    rows = LOGITS.expand(len(numbers), -1)
    tokens, log_probs = draw(rows, torch.tensor(numbers, dtype=torch.float64), Sampling(1, **settings))
    return tokens.tolist(), log_probs.exp()


def test_a_number_finds_its_token_on_the_cumulative_distribution():
    tokens, probs = tokens_of([0.0, 0.49, 0.51, 0.69, 0.71, 0.89, 0.91, 1 - 2**-52])
    assert tokens == [0, 0, 1, 1, 2, 2, 3, 3]
    torch.testing.assert_close(probs, torch.tensor([0.5, 0.5, 0.2, 0.2, 0.2, 0.2, 0.1, 0.1]).double())


def test_temperature_reshapes_the_distribution():
    # At temperature 1/2 the probabilities are squared: 25, 4, 4, 1 of 34.
    tokens, probs = tokens_of([0.73, 0.74], temperature=0.5)
    assert tokens == [0, 1]
    torch.testing.assert_close(probs, torch.tensor([25 / 34, 4 / 34]).double())


def test_top_k_and_top_p_renormalise_over_what_they_keep():
    # top_k=2 keeps 0 and the first of the equal pair: 5/7 and 2/7.
    tokens, probs = tokens_of([0.71, 0.72], top_k=2)
    assert tokens == [0, 1]
    torch.testing.assert_close(probs, torch.tensor([5 / 7, 2 / 7]).double())
    # top_p=0.6 is passed with the second token.
    assert tokens_of([0.71, 0.72, 0.99], top_p=0.6)[0] == [0, 1, 1]
    # Of the two that top_k keeps, the first alone makes up half of their sum.
    assert tokens_of([0.99], top_k=2, top_p=0.5)[0] == [0]


def test_the_likeliest_token_is_kept_whatever_top_p():
    assert kept(torch.tensor([[0.2, 0.5, 0.3]]).double(), 1e-12, 0).tolist() == [[False, True, False]]


def test_greedy_takes_the_likeliest_and_tells_its_probability_at_temperature_1():
    tokens, probs = tokens_of([0.99], temperature=0.0)
    assert tokens == [0]
    torch.testing.assert_close(probs, torch.tensor([0.5]).double())


def test_frequencies_follow_the_distribution():
    numbers = (torch.arange(10000).double() + 0.5) / 10000
    tokens, _ = draw(LOGITS.expand(10000, -1), numbers, Sampling(1))
    assert torch.bincount(tokens).tolist() == [5000, 2000, 2000, 1000]


def test_rows_drawn_in_chunks_are_the_rows_drawn_together(monkeypatch):
    logits, numbers = torch.randn(7, 11), torch.rand(7).double()
    whole = draw(logits, numbers, Sampling(1))
    monkeypatch.setattr("groupwise.rollout.sampling.CHUNK_ELEMENTS", 22)
    for a, b in zip(whole, draw(logits, numbers, Sampling(1)), strict=True):
        assert torch.equal(a, b)
