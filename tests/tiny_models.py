"""Random models of a few thousand parameters, and a tokenizer of single characters, made on the spot."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from groupwise.policy.load import wrap
from groupwise.types import Completion, Group, Prompt, Task

EOS = 1
_SHARED = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": EOS,
    "pad_token_id": 0,
    "bos_token_id": None,
}


def tiny_tokenizer():
    letters = ["<pad>", "<eos>", *"0123456789+-*=abcdefghijklmnopqrstuvwxyz"[:38]]
    raw = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(letters)}, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")


def tiny_model(family="qwen3", dtype=torch.float32, seed=0, **changes):
    torch.manual_seed(seed)
    if family == "gpt2":
        sizes = {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
        ends = {"eos_token_id": EOS, "pad_token_id": 0, "bos_token_id": None}
        model = GPT2LMHeadModel(GPT2Config(**sizes | ends | {"initializer_range": 0.3} | changes))
    elif family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**_SHARED | changes))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**_SHARED | {"head_dim": 8, "tie_word_embeddings": True} | changes))
    return model.to(dtype)


def tiny_policy(family="qwen3", dtype=torch.float32, seed=0, **changes):
    return wrap(tiny_model(family, dtype, seed, **changes), tiny_tokenizer())


def random_prompts(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        Prompt(uid=f"0-{i}", task=Task(f"t{i}", "", ""), token_ids=_tokens(length, generator))
        for i, length in enumerate(lengths)
    ]


def random_groups(prompt_lengths, answer_lengths, seed=0):
    generator = torch.Generator().manual_seed(seed + 1)
    return [
        Group(prompt, tuple(Completion(_tokens(n, generator), (0.0,) * n, "length") for n in lengths))
        for prompt, lengths in zip(random_prompts(prompt_lengths, seed), answer_lengths, strict=True)
    ]


def _tokens(length, generator):
    return tuple(torch.randint(2, 40, (length,), generator=generator).tolist())
