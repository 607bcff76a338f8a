import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from groupwise.errors import BadValueError
from groupwise.policy.load import wrap
from groupwise.policy.norms import widen_rms_norms
from groupwise.policy.probe import head_is_plain
from tiny_models import EOS, tiny_policy, tiny_tokenizer


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_models_with_positions_from_the_caller_pack(family):
    assert tiny_policy(family).packs


def test_a_model_that_counts_positions_itself_does_not_pack():
    config = BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4, eos_token_id=EOS, pad_token_id=0)
    assert not wrap(BloomForCausalLM(config), tiny_tokenizer()).packs


def test_a_model_whose_keys_are_of_other_sizes_than_its_config_names_does_not_pack():
    # Keys of 16 + 8 numbers, values of 16, and a head_dim of 8: room made by that would be too small.
    config = DeepseekV3Config(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16,
        first_k_dense_replace=2, eos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
    assert not wrap(DeepseekV3ForCausalLM(config), tiny_tokenizer()).packs
    assert tiny_policy().heads == (2, 8)


def test_float16_is_refused():
    with pytest.raises(BadValueError, match=r"Qwen3ForCausalLM is in float16, .* load it in bfloat16 or float32"):
        tiny_policy(dtype=torch.float16)


def test_the_shortest_view_of_any_layer_is_the_window():
    config = MistralConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=16, eos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
    assert wrap(MistralForCausalLM(config), tiny_tokenizer()).window == 16
    assert tiny_policy().window is None


def test_logits_changed_after_the_output_layer_are_noticed():
    policy = tiny_policy()
    assert head_is_plain(policy.model)
    plain = policy.model.forward

    def scaled(*args, **kwargs):
        output = plain(*args, **kwargs)
        output.logits = 2 * output.logits
        return output

    policy.model.forward = scaled
    assert not head_is_plain(policy.model)


def test_norms_are_exact_in_a_float64_model_and_left_alone_in_float32():
    assert widen_rms_norms(tiny_policy().model) == 0
    model = tiny_policy(dtype=torch.float64).model
    norm = model.model.layers[0].input_layernorm
    states = torch.randn(3, 32, dtype=torch.float64)
    expected = states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
    torch.testing.assert_close(norm(states), expected, atol=1e-14, rtol=0)
