"""Two prompts, four answers each: who did better than their siblings, and are the groups sound?"""

import numpy as np
import torch

from groupwise.advantages import check_groups, compute_grpo_outcome_advantage

token_level_rewards = torch.zeros(8, 128)
token_level_rewards[0, -1] = 1.0
token_level_rewards[2, -1] = 1.0
token_level_rewards[7, -1] = 1.0
uids = np.array([0, 0, 0, 0, 1, 1, 1, 1])

print(check_groups(uids, token_level_rewards, expected_size=4))
advantages, returns = compute_grpo_outcome_advantage(
    token_level_rewards=token_level_rewards,
    response_mask=torch.ones(8, 128),
    index=uids,
    norm_adv_by_std_in_grpo=True,
)
for uid, score, advantage in zip(uids, token_level_rewards.sum(-1), advantages[:, -1], strict=True):
    print(f"prompt {uid}   score {score:.0f}   advantage {advantage:+.6f}")
