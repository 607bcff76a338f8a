import hypothesis.strategies as st
import torch
from hypothesis import given

from groupwise.rollout.randomness import philox, uniforms


def words(counter, key):
    return tuple(int(word) for word in philox(tuple(torch.tensor(c) for c in counter), key))


def test_philox_gives_the_published_words():
    # Random123, kat_vectors, philox4x32 10.
    assert words((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    full = 0xFFFFFFFF
    assert words((full,) * 4, (full, full)) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert words(pi, (0xA4093822, 0x299F31D0)) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@given(st.integers(0, 2**40), st.integers(0, 2**41), st.integers(1, 9))
def test_a_number_does_not_depend_on_what_is_asked_beside_it(seed, step, num_tokens):
    prompts, answers = torch.tensor([0, 0, 5, 5]), torch.tensor([0, 1, 0, 7])
    together = uniforms(prompts, answers, 9, seed, step)
    for row in range(4):
        alone = uniforms(prompts[row : row + 1], answers[row : row + 1], num_tokens, seed, step)
        assert torch.equal(alone[0], together[row, :num_tokens])


def test_every_coordinate_changes_the_numbers():
    def numbers(prompt=0, answer=0, seed=0, step=0):
        return uniforms(torch.tensor([prompt]), torch.tensor([answer]), 4, seed, step)[0].tolist()

    settings = [{}, {"prompt": 1}, {"answer": 1}, {"seed": 1}, {"step": 1}, {"step": 1 << 40}, {"seed": 1 << 40}]
    drawn = [number for setting in settings for number in numbers(**setting)]
    assert len(set(drawn)) == len(drawn)


def test_the_numbers_are_uniform():
    drawn = uniforms(torch.arange(100).repeat_interleave(20), torch.arange(20).repeat(100), 51, 3, 4).flatten()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = torch.histc(drawn, 20, 0, 1)
    # Chi-square with 19 degrees of freedom: 43.8 is passed once in a thousand times.
    assert ((counts - 5100) ** 2 / 5100).sum() < 43.8
