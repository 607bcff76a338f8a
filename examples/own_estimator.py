"""An advantage estimator of your own in the training system: register it, then run the program.

python examples/own_estimator.py train algorithm.adv_estimator=rank
"""

import torch
from torch import Tensor

from groupwise.advantages import Groups, register_outcome_estimator
from groupwise.cli import main


@register_outcome_estimator("rank")
def rank(scores: Tensor, groups: Groups) -> Tensor:
    """(better than - worse than) / others: between -1 and 1, whatever the scale of the scores. Equal scores: 0."""
    siblings = groups.ids[:, None] == groups.ids[None]
    better = (scores[:, None] - scores[None]).sign()
    others = groups.spread(groups.sizes) - 1
    return torch.where(siblings, better, 0.0).sum(1) / others.clamp_min(1)


if __name__ == "__main__":
    main()
