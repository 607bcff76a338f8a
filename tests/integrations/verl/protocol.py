"""Random batches as verl's trainer has them: a DataProto, and the algorithm section of verl's own YAML."""

from pathlib import Path

import hydra
import torch
import verl
from omegaconf import DictConfig, open_dict
from verl import DataProto

from integrations.verl.batches import random_batch

TENSORS = ("token_level_rewards", "response_mask", "values", "old_log_probs", "sum_pi_squared")
YAML = Path(verl.__file__).parent / "trainer" / "config"


def random_proto(seed, singletons=True, greedy=False):
    """A random batch as a DataProto; float32 rewards and an int64 mask, as verl's rollout gives them.

    greedy: with the scores of greedy answers. Most of verl's estimators take no such field, and verl hands it to all.
    """
    fields = random_batch(seed, torch.float32, torch.int64, singletons)
    prompts, attention_mask = fields["batch"]["prompts"], fields["batch"]["attention_mask"]
    tensors = {name: fields[name] for name in (*TENSORS, *(["reward_baselines"] if greedy else []))}
    tensors |= {"prompts": prompts, "attention_mask": attention_mask, "responses": attention_mask[:, 3:].clone()}
    tensors["token_level_scores"] = fields["token_level_rewards"].clone()
    return DataProto.from_dict(tensors, non_tensors={"uid": fields["index"], **fields["non_tensor_batch"]})


def verls_algorithm_section(**changes) -> DictConfig:
    """`algorithm:` of ppo_trainer.yaml, composed by Hydra with its defaults, struct flag and all."""
    with hydra.initialize_config_dir(str(YAML), version_base=None):
        section = hydra.compose("ppo_trainer").algorithm
    with open_dict(section):
        section.update(changes)
    return section
