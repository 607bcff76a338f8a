"""The two sides of `learn_gpu.py`: ours and TRL's GRPOTrainer, each learning until its time is over."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from learn_tasks import close, read_rows, right
from processes import tell
from step_sides import clock_of, peak_bytes

# More than fit into any time.
ENDLESS = 1_000_000
# Of AdamW, on both sides: our defaults.
BETAS = (0.9, 0.99)
EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Order:
    """What a side is asked to learn, and with what. model: a folder. train, held_out: files of questions.
    launched: when its process was, in seconds of the machine's clock."""

    model: str
    train: str
    held_out: str
    device: str
    seconds: float
    evaluations: int
    seed: int
    prompts: int
    n: int
    learning_rate: float
    answer_tokens: int
    checkpoints: bool
    launched: float

    @property
    def answers(self) -> int:
        return self.prompts * self.n


@dataclass
class Progress:
    """Accuracy on held-out questions over the seconds of training, told as it goes.

    The clock starts when the model is loaded. The first evaluation counts, because it compiles what training needs;
    those after it do not.
    """

    order: Order
    spent: float = 0.0
    steps: list[float] = field(default_factory=list)
    points: list[dict[str, float]] = field(default_factory=list)
    start_up: float = 0.0

    def __post_init__(self) -> None:
        self.clock = clock_of(self.order.device)

    def begin(self, accuracy: Callable[[], float]) -> None:
        self.start_up = time.time() - self.order.launched
        ready = self.clock()
        self._add(accuracy(), self.clock() - ready)

    def step(self, seconds: float, accuracy: Callable[[], float]) -> bool:
        """One more step of so many seconds; whether there is time for another."""
        self.steps.append(seconds)
        self.spent += seconds
        every = self.order.seconds / self.order.evaluations
        is_over = self.spent >= self.order.seconds
        if is_over or self.spent - self.points[-1]["seconds"] >= every:
            self._add(accuracy(), 0.0)
        return not is_over

    def _add(self, accuracy: float, seconds: float) -> None:
        self.spent += seconds
        self.points.append({"seconds": self.spent, "steps": len(self.steps), "accuracy": accuracy})
        # The first steps compile.
        warm = statistics.median(self.steps[len(self.steps) // 2 :]) if self.steps else None
        peak = peak_bytes(self.order.device)
        tell({"points": self.points, "seconds per step": warm, "peak": peak, "start-up": self.start_up})


def ours(order: Order) -> None:
    """The stages of `groupwise train`, without its folder of a run."""
    from groupwise.config import (
        ActorConfig,
        DataConfig,
        ModelConfig,
        OptimConfig,
        RewardConfig,
        RolloutConfig,
        RunConfig,
        TrainerConfig,
    )
    from groupwise.evaluation import evaluate
    from groupwise.parts import Parts, sampling_of

    config = RunConfig(
        model=ModelConfig(path=order.model, device=order.device, enable_gradient_checkpointing=order.checkpoints),
        data=DataConfig(
            train_files=(order.train,),
            val_files=(order.held_out,),
            train_batch_size=order.prompts,
            val_size=ENDLESS,
            max_response_length=order.answer_tokens,
        ),
        rollout=RolloutConfig(n=order.n),
        reward=RewardConfig(function=f"{Path(__file__).with_name('learn_tasks.py')}:{close.__name__}"),
        actor=ActorConfig(optim=OptimConfig(lr=order.learning_rate, lr_scheduler_type="constant", betas=BETAS)),
        trainer=TrainerConfig(seed=order.seed, total_training_steps=ENDLESS),
    )
    parts, progress = Parts(config), Progress(order)

    def accuracy() -> float:
        return evaluate(parts.engine, parts.held_out, parts.reward, sampling_of(config), 1)["accuracy"]

    def train_step(step: int) -> float:
        began = progress.clock()
        prompts = parts.next_prompts(step)
        groups = parts.reward(parts.engine.generate(prompts, order.n, sampling_of(config, step)))
        parts.learn(groups, parts.judge(groups).to_learn)
        return progress.clock() - began

    progress.begin(accuracy)
    step = 1
    while progress.step(train_step(step), accuracy):
        step += 1


def trl(order: Order) -> None:
    """TRL's trainer with the same numbers: float32 weights, computed with in bfloat16 on a GPU."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    is_gpu = order.device == "cuda"
    tokenizer = AutoTokenizer.from_pretrained(order.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(order.model, dtype=torch.float32).to(order.device)
    held_out = read_rows(order.held_out)
    progress = Progress(order)
    config = GRPOConfig(
        output_dir="runs/trl", per_device_train_batch_size=order.answers, num_generations=order.n,
        max_completion_length=order.answer_tokens, max_steps=ENDLESS, logging_steps=ENDLESS, report_to=[],
        bf16=is_gpu, use_cpu=not is_gpu, save_strategy="no", beta=0.0, loss_type="grpo", disable_tqdm=True,
        learning_rate=order.learning_rate, lr_scheduler_type="constant", adam_beta1=BETAS[0], adam_beta2=BETAS[1],
        weight_decay=0.0, max_grad_norm=1.0, gradient_checkpointing=order.checkpoints, seed=order.seed,
    )  # fmt: skip

    def accuracy() -> float:
        model.eval()
        scores = []
        for first in range(0, len(held_out), EVALUATION_BATCH):
            rows = held_out[first : first + EVALUATION_BATCH]
            told = greedy(model, tokenizer, [row["prompt"] for row in rows], order.answer_tokens)
            scores += right(told, [row["answer"] for row in rows])
        model.train()
        return statistics.mean(scores)

    class Timer(TrainerCallback):
        began = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            progress.begin(accuracy)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = progress.clock()

        def on_step_end(self, _arguments: Any, _state: Any, control: Any, **__: Any) -> None:
            control.should_training_stop = not progress.step(progress.clock() - self.began, accuracy)

    GRPOTrainer(
        model=model,
        args=config,
        processing_class=tokenizer,
        reward_funcs=close,
        train_dataset=Dataset.from_list(
            [{"prompt": row["prompt"], "answer": row["answer"]} for row in read_rows(order.train)]
        ),
        callbacks=[Timer()],
    ).train()


@torch.no_grad()
def greedy(model: Any, tokenizer: Any, prompts: list[Any], tokens: int) -> list[list[dict[str, str]]]:
    """The likeliest answer to each chat, as a message."""
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in prompts]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
    out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    answers = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [[{"role": "assistant", "content": text}] for text in answers]


SIDES = {"ours": ours, "trl": trl}
