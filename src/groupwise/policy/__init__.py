"""The model: loaded from a folder, asked for hidden states and log-probabilities, saved as transformers saves it.

`Policy` is all the other stages see of a model. They import nothing from here: they are handed one.
"""

from groupwise.policy.load import load_policy, save_model
from groupwise.policy.log_probs import TokenStatistics, token_statistics
from groupwise.policy.model import Policy

__all__ = ["Policy", "TokenStatistics", "load_policy", "save_model", "token_statistics"]
