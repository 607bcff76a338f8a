"""A loss of your own in the training system: one function and one row, then run the program.

python examples/own_loss.py train actor.loss_mode=smooth actor.ppo_epochs=2
"""

import torch

from groupwise.cli import main
from groupwise.objectives import LOSS_MODES, Losses, LossMode, Settings, Tokens


def smooth(tokens: Tokens, settings: Settings) -> Losses:
    """-A exp(-x^2 / (2 low^2)) lp with the weight held fixed: a token counts less the further it has moved."""
    distance = tokens.log_ratio.detach() / settings.clip_low
    weight = torch.exp(-0.5 * distance.square())
    return Losses(-tokens.advantages * weight * tokens.log_probs, clipped=distance.abs() > 1)


LOSS_MODES["smooth"] = LossMode(smooth)

if __name__ == "__main__":
    main()
