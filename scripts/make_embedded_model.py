"""Make the embedded base model: a small Qwen3 that has begun to learn two-digit sums and was stopped half-way.

    OMP_NUM_THREADS=1 python scripts/make_embedded_model.py src/groupwise/assets/embedded

Supervised next-token learning on questions of the training split, from random weights, for STEPS steps. Nothing else
is done to the weights: what the model gets wrong, it has not learned yet. The batches are small on purpose: in the
trials, a model taken to the same accuracy by batches of 256 lost most of it in the first hundred steps of GRPO before
it came back, and one made by batches of 32 did not. That noisy gradients leave weights that bear noise is a guess. The
same torch version and thread count make the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers import __version__ as transformers_version

from groupwise.tasks import GeneratedTasks, held_out_sample
from groupwise.types import Task

THREADS = 1
SEED = 0
TASK, DIFFICULTY = "sums", 2
STEPS, BATCH, LEARNING_RATE = 436, 32, 1.5e-3
# The learning rate rises over the first steps and falls over the last ones, each in a line.
WARMUP, COOLDOWN = 30, 145
SPECIAL = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
CHARACTERS = "0123456789+-*/=()<>,.:?!#\\{}$ \nabcdefghijklmnopqrstuvwxyz"
# Chat messages reach the model as their bare contents, one after another.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; what is not in CHARACTERS becomes <unk>."""
    vocabulary = {piece: place for place, piece in enumerate([*SPECIAL.values(), *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, SPECIAL["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **SPECIAL,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.05,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def as_rows(tokenizer: PreTrainedTokenizerFast, tasks: list[Task]) -> tuple[Tensor, Tensor]:
    """Token ids, padded at the end, and the targets: the answer and <eos>; the prompt teaches nothing."""
    rows = [(tokenizer.encode(str(t.prompt)), [*tokenizer.encode(t.answer), tokenizer.eos_token_id]) for t in tasks]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    targets = torch.full((len(rows), width), -100)
    for place, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[place, :end] = torch.tensor(prompt + answer)
        targets[place, len(prompt) : end] = torch.tensor(answer)
    return ids, targets


@torch.no_grad()
def accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, tasks: list[Task], temperature: float = 0.0
) -> float:
    """Share of exact answers: greedy, or sampled."""
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    inputs = tokenizer([str(task.prompt) for task in tasks], return_tensors="pt", padding=True)
    outputs = model.generate(
        inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=DIFFICULTY + 2, **sampling
    )
    answers = tokenizer.batch_decode(outputs[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(answer == task.answer for answer, task in zip(answers, tasks, strict=True)) / len(tasks)


def rate(step: int) -> float:
    """The share of LEARNING_RATE at a step."""
    return min(1.0, (step + 1) / WARMUP, (STEPS - step) / COOLDOWN)


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    questions = GeneratedTasks(TASK, DIFFICULTY, SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in range(STEPS):
        ids, targets = as_rows(tokenizer, [questions[step * BATCH + place] for place in range(BATCH)])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def write_provenance(
    folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, held_out: list[Task]
) -> None:
    torch.manual_seed(SEED)
    sampled = sum(accuracy(model, tokenizer, held_out, temperature=1.0) for _ in range(4)) / 4
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.[js]*"))}
    files.pop("provenance.json", None)
    provenance = {
        "command": "OMP_NUM_THREADS=1 python scripts/make_embedded_model.py src/groupwise/assets/embedded",
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers_version,
        "threads": torch.get_num_threads(),
        "seed": SEED,
        "task": TASK,
        "difficulty": DIFFICULTY,
        "supervised_steps": STEPS,
        "batch": BATCH,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "held_out_questions": len(held_out),
        "greedy_accuracy": accuracy(model, tokenizer, held_out),
        "sampled_accuracy_at_temperature_1": sampled,
        "sha256": files,
    }
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")
    print(json.dumps(provenance, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model goes")
    folder: Path = parser.parse_args().folder
    if os.environ.get("OMP_NUM_THREADS") != str(THREADS):
        raise SystemExit(f"set OMP_NUM_THREADS={THREADS}: the bytes depend on the number of threads")
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    held_out = held_out_sample(TASK, DIFFICULTY, 256)
    train(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    saved = AutoModelForCausalLM.from_pretrained(folder)
    write_provenance(folder, saved, tokenizer, held_out)


if __name__ == "__main__":
    main()
