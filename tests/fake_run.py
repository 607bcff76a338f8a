"""A run's folder with everything a report looks at, made in a moment."""

import json
import math
import random

import pyarrow as pa
import pyarrow.parquet as pq

CONFIG = """\
model: {path: embedded, dtype: float32}
data: {task: sums, difficulty: 2, train_files: [], train_batch_size: 8, shuffle: true}
rollout: {n: 16, temperature: 1.0}
algorithm: {adv_estimator: rloo, gamma: 1.0, kl_ctrl: {type: fixed, kl_coef: 0.001}}
actor: {recipe: grpo, clip_ratio: 0.2, optim: {lr: 0.0005, betas: [0.9, 0.99]}}
trainer: {total_training_steps: 100, seed: 3, test_freq: 10}
"""


def metrics_row(step, steps=100, noise=None):
    """A plausible row of metrics.jsonl."""
    noise = noise or random.Random(step)
    learned = 1 - math.exp(-3 * step / steps)
    row = {"step": step}
    if step:
        row |= {
            "reward/mean": 0.55 + 0.42 * learned + noise.gauss(0, 0.02),
            "loss": noise.gauss(0, 0.01),
            "grad_norm": 0.4 + noise.random() * 0.3 + 0.5 * (1 - learned),
            "response_length/mean": 3.4 - 0.3 * learned + noise.gauss(0, 0.03),
            "groups/no_signal": min(1.0, 0.2 + 0.6 * learned + noise.gauss(0, 0.03)),
            "actor/entropy": 0.6 * (1 - learned) + 0.05 + noise.random() * 0.02,
            "actor/kl": 0.08 * learned + noise.random() * 0.004,
            "time/step": 1.02,
        }
    if step % 10 == 0 or step == steps:
        accuracy = 0.5 + 0.46 * learned
        row |= {"eval/accuracy": accuracy, "eval/mean@4": accuracy - 0.02, "eval/pass@4": min(1.0, accuracy + 0.1)}
    return row


def answers(step, groups=8, n=16):
    """The rows of a rollout: sums, some right, some wrong, some failed."""
    noise = random.Random(step)
    rows = []
    for group in range(groups):
        a, b = noise.randrange(10, 100), noise.randrange(10, 100)
        chance = 0.0 if group == 0 else noise.random()
        drawn = [a + b if noise.random() < chance else a + b + noise.choice((-10, 10, 1)) for _ in range(n)]
        mean = sum(value == a + b for value in drawn) / n
        for place, value in enumerate(drawn):
            failed = group == 1 and place == 0
            score = None if failed else float(value == a + b)
            rows.append(
                {
                    "step": step,
                    "uid": f"{step}-{group}",
                    "prompt": f"{a}+{b}=",
                    "response": str(value),
                    "score": score,
                    "advantage": 0.0 if failed else score - mean,
                    "finish_reason": "length" if place == n - 1 else "stop",
                    "failure": "the reward function raised ValueError: no number" if failed else None,
                }
            )
    return rows


def write_run(folder, steps=100, rollouts=None, config=CONFIG):
    """folder: made if need be. rollouts: step -> rows; None makes some at the first, middle and last step."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rollouts").mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    lines = [json.dumps(metrics_row(step, steps)) for step in range(steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    rollouts = {step: answers(step) for step in (1, steps // 2, steps)} if rollouts is None else rollouts
    for step, rows in rollouts.items():
        write_rollout(folder, step, rows)
    return folder


def write_rollout(folder, step, rows):
    pq.write_table(pa.Table.from_pylist(rows), folder / "rollouts" / f"step_{step:06d}.parquet")
