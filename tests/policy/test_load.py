import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise.config import ModelConfig
from groupwise.errors import BadValueError, UnknownNameError
from groupwise.policy import load_policy, save_model
from groupwise.policy.load import wrap
from groupwise.types import Task
from tiny_models import EOS, tiny_model, tiny_policy, tiny_tokenizer

NOWHERE = Path("/nowhere")
TEMPLATE = "{% for m in messages %}{{ m.content }}={% endfor %}{% if add_generation_prompt %}*{% endif %}"


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def saved(folder, family="qwen3", **changes):
    save_model(tiny_policy(family, **changes), folder)
    return folder


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_what_is_saved_is_what_transformers_loads(family, dtype, tmp_path):
    folder = saved(tmp_path / "a", family)
    policy = load_policy(ModelConfig(path=str(folder), dtype=dtype), NOWHERE)
    assert policy.dtype == getattr(torch, dtype)
    assert not policy.model.training
    save_model(policy, tmp_path / "b")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert {path.name for path in (tmp_path / "b").iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    own, theirs = policy.model.state_dict(), again.state_dict()
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    assert AutoTokenizer.from_pretrained(tmp_path / "b").get_vocab() == policy.tokenizer.get_vocab()
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        assert torch.allclose(policy.model(ids).logits, again(ids).logits, rtol=1e-3, atol=1e-2)


def test_embedded_stands_for_the_folder_given(tmp_path):
    policy = load_policy(ModelConfig(), saved(tmp_path))
    assert policy.encode(Task("k", "12+3=", "")) == (3, 4, 12, 5, 15)
    assert policy.decode((3, 4, EOS)).replace(" ", "") == "12"


def test_every_end_of_sequence_token_that_is_named_ends_an_answer():
    model = tiny_model()
    model.generation_config.eos_token_id = [7, 9]
    assert wrap(model, tiny_tokenizer()).eos_ids == {EOS, 7, 9}


def test_messages_go_through_the_chat_template():
    policy = tiny_policy()
    policy.tokenizer.chat_template = TEMPLATE
    text = policy.encode(Task("k", "12=*", ""))
    assert policy.encode(Task("k", [{"role": "user", "content": "12"}], "")) == text


STRICT = "{% if messages[0].role != 'user' %}{{ raise_exception('the user speaks first') }}{% endif %}1="


@pytest.mark.parametrize(
    ("template", "reason"), [(STRICT, "the user speaks first"), ("{{ messages[7].content.x() }}", "no element 7")]
)
def test_messages_the_chat_template_refuses_are_named_with_its_reason(template, reason):
    policy = tiny_policy()
    policy.tokenizer.chat_template = template
    said = rf"task 'b.jsonl:7': the model's chat template refuses its messages \(.*{reason}"
    with pytest.raises(BadValueError, match=said):
        policy.encode(Task("b.jsonl:7", [{"role": "system", "content": "1"}], ""))


def test_a_conversation_of_several_turns_reaches_the_template_whole():
    policy = tiny_policy()
    policy.tokenizer.chat_template = TEMPLATE
    turns = [("system", "1"), ("user", "2"), ("assistant", "3"), ("user", "4")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert policy.encode(Task("k", messages, "")) == policy.encode(Task("k", "1=2=3=4=*", ""))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([{"role": "user", "content": "1"}], "task 'k' is a chat, and this model's tokenizer has no chat template"),
        ("1" * 300, "task 'k' has a prompt of 300 tokens, and the model's context ends at 256"),
        ("", "task 'k' has an empty prompt"),
    ],
)
def test_a_prompt_the_model_cannot_read_is_refused(prompt, message):
    with pytest.raises(BadValueError, match=message):
        tiny_policy().encode(Task("k", prompt, ""))


def refusal(path, **settings):
    with pytest.raises(BadValueError) as caught:
        load_policy(ModelConfig(path=str(path), **settings), NOWHERE)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_loaded_is_refused_in_one_line(tmp_path, monkeypatch):
    assert "there is no such folder" in refusal(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    assert "the folder has no config.json" in refusal(tmp_path / "empty")
    assert "there is no such file" in refusal(tmp_path / "missing.gguf")
    assert "cannot be loaded" in refusal("nobody/nothing")
    bare = saved(tmp_path / "bare")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    assert "there is no tokenizer" in refusal(bare)
    broken = saved(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    assert "the model cannot be loaded" in refusal(broken)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr("groupwise.policy.load.find_spec", lambda name: None)
    assert "pip install gguf" in refusal(tmp_path / "model.gguf")


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    folder = saved(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('was run')")
    assert "cannot be loaded" in refusal(folder)


def test_an_unknown_dtype_names_the_nearest():
    with pytest.raises(UnknownNameError, match="nearest is 'bfloat16'"):
        load_policy(ModelConfig(dtype="bfloat"), NOWHERE)


def test_a_model_without_an_end_of_sequence_is_refused():
    model, tokenizer = tiny_model(), tiny_tokenizer()
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token = None
    with pytest.raises(BadValueError, match="names an end-of-sequence token"):
        wrap(model, tokenizer)


def test_marks_of_quantization_are_cleared_so_that_the_model_saves(tmp_path):
    model = tiny_model()
    model.config.quantization_config = {"quant_method": "gguf"}
    model.quantization_method = "gguf"
    save_model(wrap(model, tiny_tokenizer()), tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())


def test_a_frozen_copy_stays_as_it_was():
    policy = tiny_policy()
    frozen = policy.frozen_copy()
    ids = torch.tensor([[3, 4, 5]])
    before = policy.model(ids).logits.detach()
    with torch.no_grad():
        for _, parameter in policy.parameters():
            parameter.mul_(2)
    assert torch.equal(frozen.model(ids).logits, before)
    assert not any(parameter.requires_grad for _, parameter in frozen.parameters())


def test_weights_that_are_missing_are_named():
    with pytest.raises(BadValueError, match=r"'model.embed_tokens.weight' among them"):
        tiny_policy().load_weights({})


def test_a_mistyped_name_beside_runs_or_models_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.yaml").write_text("model: {}")
    with pytest.raises(BadValueError, match=r"model.path='runs/frist': there is no such folder"):
        load_policy(ModelConfig(path="runs/frist", device="cpu"), tmp_path)
