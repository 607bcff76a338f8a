"""The base model that comes with the package: its files, its tokenizer, and how much it has learned."""

import hashlib
import json
from importlib import resources

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from groupwise.tasks import TASKS, GeneratedTasks, held_out_sample

FOLDER = resources.files("groupwise") / "assets" / "embedded"
PROVENANCE = json.loads((FOLDER / "provenance.json").read_text())


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(str(FOLDER), local_files_only=True)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(str(FOLDER), local_files_only=True).eval()


def accuracy(model, tokenizer, tasks, temperature):
    """Share of exact answers, by decoding without a cache: the whole text again for every token."""
    ids = torch.tensor([tokenizer.encode(task.prompt) for task in tasks])
    length = ids.shape[1]
    for _ in range(5):
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, -1]
        drawn = torch.multinomial((logits / temperature).softmax(-1), 1) if temperature else logits.argmax(-1)[:, None]
        ids = torch.cat([ids, drawn], dim=1)
    right = 0
    for row, task in zip(ids[:, length:].tolist(), tasks, strict=True):
        ended = row[: row.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in row else row
        right += tokenizer.decode(ended) == task.answer
    return right / len(tasks)


def test_files_are_those_the_provenance_names_and_small():
    names = {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert names <= set(PROVENANCE["sha256"])
    for name, digest in PROVENANCE["sha256"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name
    assert (FOLDER / "model.safetensors").stat().st_size <= 3_000_000


def test_the_model_is_what_the_provenance_says(model):
    parameters = list(model.parameters())
    assert sum(parameter.numel() for parameter in parameters) == PROVENANCE["parameters"]
    assert {parameter.dtype for parameter in parameters} == {torch.float32}
    assert model.config.model_type == "qwen3"


def test_every_character_is_a_token_and_comes_back(tokenizer, model):
    text = "12+34= sort 9,8>7? (3*8)-1\n\\boxed{x} #### 5 $2.50!"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("1\u00e93")[1] == tokenizer.unk_token_id
    assert len(tokenizer) == model.config.vocab_size


def test_special_tokens_are_told_apart_and_dropped_from_texts(tokenizer, model):
    special = [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
    assert len(set(special)) == 3
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.pad_token_id == model.generation_config.pad_token_id == tokenizer.pad_token_id
    ids = [*tokenizer.encode("46"), tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "46"


def test_chat_messages_are_read_as_their_contents(tokenizer):
    messages = [{"role": "system", "content": "add "}, {"role": "user", "content": "12+34="}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == "add 12+34="


@pytest.mark.parametrize("name", TASKS)
def test_prompts_and_answers_of_every_family_can_be_written(name, tokenizer):
    tasks = GeneratedTasks(name, 4, seed=0)
    for position in range(50):
        assert tokenizer.unk_token_id not in tokenizer.encode(tasks[position].prompt + tasks[position].answer)


def test_it_has_begun_to_learn_and_not_more(model, tokenizer):
    # Between 0.35 and 0.5: low enough to have something to learn, high enough that groups have right answers to
    # learn from. Another machine may break a tie of rounding another way, one question in 256 or two.
    held_out = held_out_sample("sums", 2, 256)
    greedy = accuracy(model, tokenizer, held_out, temperature=0)
    assert 0.35 <= greedy <= 0.5
    assert greedy == pytest.approx(PROVENANCE["greedy_accuracy"], abs=2 / 256)
    sampled = sum(accuracy(model, tokenizer, held_out, temperature=1) for _ in range(4)) / 4
    # 1024 draws: a standard error of 0.015
    assert sampled == pytest.approx(PROVENANCE["sampled_accuracy_at_temperature_1"], abs=0.06)
    assert 0.15 < sampled < greedy


def test_it_has_learned_training_questions_no_better_than_held_out_ones(model, tokenizer):
    # Twice 256 questions: the difference has a standard error of 0.044.
    training = GeneratedTasks("sums", 2, seed=123)
    asked = [training[position] for position in range(256)]
    assert accuracy(model, tokenizer, asked, temperature=0) == pytest.approx(PROVENANCE["greedy_accuracy"], abs=0.13)
