"""Run by test_processes.py under torchrun: one group of eight answers, four of them on either process."""

import json
import os
import sys
from pathlib import Path

import torch

from integrations.trl.tiny import Both, rewarding, tiny_trainer

folder, estimator, rank = Path(sys.argv[1]), sys.argv[2], int(os.environ["RANK"])
rewards = ([1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0])[rank]
trainer = tiny_trainer(
    Both,
    rewarding(*rewards),
    str(folder),
    num_generations=8,
    trl={"per_device_train_batch_size": 4},
    advantage_estimator=estimator,
)
trainer.train()
seen = {"ours": trainer.ours[0], "theirs": trainer.theirs[0], "lengths": trainer.lengths[0]}
numbers = {name: values.tolist() for name, values in seen.items()}
(folder / f"{rank}.json").write_text(json.dumps({**numbers, "logged": trainer.logged[0]}))
# Neither leaves while the other still talks to it: a process that ends with its group open may abort.
torch.distributed.barrier()
torch.distributed.destroy_process_group()
# What is tested is written. torch's threads, torn down at exit, abort one process in several; they have no part in it.
os._exit(0)
