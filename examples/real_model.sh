#!/usr/bin/env bash
# A real model on data of your own. Give the model and the data, and settings of your own behind them:
#
#     examples/real_model.sh Qwen/Qwen3-0.6B gsm8k/train.parquet gsm8k/test.parquet rollout.n=16
#
# The files are verl's parquet files as its preprocessing scripts write them, or jsonl with "prompt" and "answer".
# bfloat16 halves the memory of the weights. Everything not named here has the default of docs/configuration.md.
set -euo pipefail
model=$1 train=$2 test=$3
shift 3

groupwise train \
  model.path="$model" \
  model.dtype=bfloat16 \
  data.train_files="$train" \
  data.val_files="$test" \
  data.train_batch_size=16 \
  data.max_prompt_length=512 \
  data.max_response_length=1024 \
  rollout.n=8 \
  actor.recipe=dapo \
  actor.optim.lr=1e-6 \
  actor.optim.lr_scheduler_type=constant \
  actor.micro_batch_tokens=32768 \
  trainer.total_training_steps=200 \
  trainer.test_freq=20 \
  trainer.run_dir=runs/real-model \
  "$@"
