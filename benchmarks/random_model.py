"""Random models to measure speed with: a row of `SHAPES` each, a tokenizer that reads one letter as one token."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

PAD, EOS = 0, 1


@dataclass(frozen=True)
class Shape:
    """A Qwen3: its config, and how many numbers it is made of."""

    config: dict[str, int]

    @property
    def layers(self) -> int:
        return self.config["num_hidden_layers"]

    @property
    def layer_parameters(self) -> int:
        """Of the matrices of one layer: queries and output, keys and values, and three of the MLP."""
        config = self.config
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        attention = 2 * (heads + kv_heads) * config["head_dim"]
        return config["hidden_size"] * (attention + 3 * config["intermediate_size"])

    @property
    def head_parameters(self) -> int:
        """Of the output layer, which is the table of embeddings as well."""
        return self.config["vocab_size"] * self.config["hidden_size"]

    @property
    def attention_width(self) -> int:
        return self.config["num_attention_heads"] * self.config["head_dim"]

    @property
    def token_elements(self) -> int:
        """Keys and values of one token, all layers."""
        return 2 * self.layers * self.config["num_key_value_heads"] * self.config["head_dim"]


SHAPES = {
    "qwen3-0.6b": Shape(
        {
            "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 32768,
        }
    ),
    "tiny": Shape(
        {
            "vocab_size": 128, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 8192,
        }
    ),
}  # fmt: skip


def dtype_of(device: str) -> torch.dtype:
    """bfloat16 on a GPU, float32 on a CPU, as the programs choose."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def make_model(shape: Shape, device: str) -> tuple[Any, Any]:
    """The model and its tokenizer; the same weights every time on a device."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    vocabulary = {c: i for i, c in enumerate(["<pad>", "<eos>"] + [chr(i) for i in range(32, 127)])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", padding_side="left")
    config = Qwen3Config(
        **shape.config, tie_word_embeddings=True, bos_token_id=None, eos_token_id=EOS, pad_token_id=PAD
    )
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(dtype_of(device))
    return model, tokenizer


def make_prompts(count: int, width: int) -> list[str]:
    """Random letters, each prompt `width` tokens long."""
    letters = random.Random(0)
    return ["".join(letters.choice("abcdefghij") for _ in range(width)) for _ in range(count)]
