"""The first thing anyone tries, exactly as written for verl with the module renamed."""

import pytest


def test_the_seed_example_gives_the_known_numbers_in_every_token():
    # fmt: off
    import torch, numpy as np  # noqa: E401, I001
    from groupwise.advantages import compute_grpo_outcome_advantage
    token_level_rewards = torch.zeros(8, 128)
    token_level_rewards[0, -1] = 1.0; token_level_rewards[2, -1] = 1.0; token_level_rewards[7, -1] = 1.0  # noqa: E702
    advantages, returns = compute_grpo_outcome_advantage(token_level_rewards=token_level_rewards,
        response_mask=torch.ones(8, 128), index=np.array([0, 0, 0, 0, 1, 1, 1, 1]), norm_adv_by_std_in_grpo=True)
    # fmt: on
    # 1, 0, 1, 0: mean 1/2, std 1/sqrt(3): +-sqrt(3)/2.  0, 0, 0, 1: mean 1/4, std 1/2: -1/2 and 3/2.
    expected = torch.tensor([0.866024, -0.866024, 0.866024, -0.866024, -0.5, -0.5, -0.5, 1.5])
    torch.testing.assert_close(advantages, expected[:, None].expand(8, 128), rtol=2e-6, atol=2e-6)
    # With the 1e-6 beside the std: 0.5 / 0.5773513 and 0.75 / 0.500001, which is 3e-6 below 1.5.
    assert advantages[0, 0].item() == pytest.approx(0.5 / (3**-0.5 + 1e-6), rel=1e-7)
    assert advantages[7, 0].item() == pytest.approx(0.75 / 0.500001, rel=1e-7)
    assert advantages.dtype == torch.float32
    assert returns is advantages
