"""A GRPOTrainer small enough for a CPU: random weights, characters as tokens, nothing downloaded."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from groupwise.integrations.trl import GroupRelativeAdvantages

PROMPTS = ["ab", "cd", "ef", "gh"]


class Recorded(GRPOTrainer):
    """TRL's own trainer, which writes down its advantages."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.theirs, self.their_share = [], []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        mode = "train" if self.model.training else "eval"
        self.theirs.append(output["advantages"].clone())
        self.their_share.append(self._metrics[mode]["frac_reward_zero_std"][-1])
        return output


class Both(GroupRelativeAdvantages, Recorded):
    """Ours on top of it, which writes down both."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ours, self.our_share, self.lengths, self.logged = [], [], [], []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        mode = "train" if self.model.training else "eval"
        self.ours.append(output["advantages"].clone())
        self.our_share.append(self._metrics[mode]["frac_reward_zero_std"][-1])
        self.lengths.append(output["completion_mask"].sum(1))
        self.logged.append(list(self._logs["advantages"]))
        return output


def rewarding(*rewards):
    """A reward function that gives these numbers, in the order of the completions, whatever they say."""

    def reward(completions, **_):
        return list(rewards[: len(completions)])

    return reward


def tiny_trainer(cls, reward_funcs, output_dir, *, num_generations=4, trl=None, **kwargs):
    vocabulary = {c: i for i, c in enumerate(["<pad>", "<eos>", *map(chr, range(97, 117))])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", padding_side="left")
    shape = {"vocab_size": len(vocabulary), "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    model = Qwen3ForCausalLM(Qwen3Config(**shape, **heads, eos_token_id=1, pad_token_id=0))
    config = GRPOConfig(
        **{
            "output_dir": output_dir,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 8,
            "num_generations": num_generations,
            "max_completion_length": 5,
            "max_steps": 1,
            "logging_steps": 1,
            "report_to": [],
            "bf16": False,
            "use_cpu": True,
            "save_strategy": "no",
            "beta": 0.0,
            "steps_per_generation": 1,
            "learning_rate": 1e-3,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            **(trl or {}),
        }
    )
    data = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])
    return cls(
        model=model,
        args=config,
        processing_class=tokenizer,
        reward_funcs=reward_funcs,
        train_dataset=data,
        eval_dataset=data,
        **kwargs,
    )
