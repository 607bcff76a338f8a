"""verl 0.9.1's names on the command line: what they are called here, and which of them have nothing to decide here.

A name that ends in a dot stands for every name that begins with it. What verl decides about the machines, the engine
and the logging is passed over with a line that says so; what would change the numbers and has no counterpart is an
unknown setting, as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from groupwise.errors import UnknownNameError

NAMES: dict[str, str] = {
    "actor_rollout_ref.actor.policy_loss.": "actor.",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "actor.micro_batch_tokens",
    "actor_rollout_ref.actor.": "actor.",
    "actor_rollout_ref.rollout.val_kwargs.n": "data.val_n",
    "actor_rollout_ref.rollout.prompt_length": "data.max_prompt_length",
    "actor_rollout_ref.rollout.response_length": "data.max_response_length",
    "actor_rollout_ref.rollout.": "rollout.",
    "actor_rollout_ref.model.": "model.",
    "data.val_max_samples": "data.val_size",
    "trainer.default_local_dir": "trainer.run_dir",
    "trainer.max_actor_ckpt_to_keep": "trainer.max_ckpt_to_keep",
}
"""verl's name -> ours, the most specific first."""

REWARD_FUNCTIONS = ("reward.custom_reward_function.", "custom_reward_function.")
"""`.path` and `.name` under these are `reward.function=PATH:NAME`."""

_MACHINES = "a run is one process on one device"
_MEMORY = "the numbers do not depend on how a batch is cut; actor.micro_batch_tokens bounds the memory"
_COMPUTING = "it decides how verl computes, not what"
_LOGGING = "metrics.jsonl, the rollouts and report.html are always written"
_CRITIC = "there is no critic"

PASSED_OVER: dict[str, str] = {
    "actor_rollout_ref.actor.ppo_micro_batch_size": _MEMORY,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": _MEMORY,
    "actor_rollout_ref.actor.use_dynamic_bsz": _MEMORY,
    "actor_rollout_ref.actor.fsdp_config.": _MACHINES,
    "actor_rollout_ref.actor.strategy": _MACHINES,
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": _MACHINES,
    "actor_rollout_ref.actor.use_torch_compile": _COMPUTING,
    "actor_rollout_ref.actor.use_fused_kernels": _COMPUTING,
    "actor_rollout_ref.actor.use_remove_padding": _COMPUTING,
    "actor_rollout_ref.actor.entropy_checkpointing": _COMPUTING,
    "actor_rollout_ref.actor.entropy_from_logits_with_chunking": _COMPUTING,
    "actor_rollout_ref.actor.checkpoint.": _COMPUTING,
    "actor_rollout_ref.actor.calculate_entropy": _LOGGING,
    "actor_rollout_ref.ref.": _COMPUTING,
    "actor_rollout_ref.hybrid_engine": _MACHINES,
    "actor_rollout_ref.nccl_timeout": _MACHINES,
    "actor_rollout_ref.model.enable_activation_offload": _COMPUTING,
    "actor_rollout_ref.model.use_fused_kernels": _COMPUTING,
    "actor_rollout_ref.model.use_liger": _COMPUTING,
    "actor_rollout_ref.model.use_remove_padding": _COMPUTING,
    "actor_rollout_ref.model.use_shm": _MACHINES,
    "actor_rollout_ref.rollout.calculate_log_probs": _LOGGING,
    "actor_rollout_ref.rollout.data_parallel_size": _MACHINES,
    "actor_rollout_ref.rollout.disable_log_stats": _LOGGING,
    "actor_rollout_ref.rollout.enable_chunked_prefill": _COMPUTING,
    "actor_rollout_ref.rollout.enable_prefix_caching": _COMPUTING,
    "actor_rollout_ref.rollout.enforce_eager": _COMPUTING,
    "actor_rollout_ref.rollout.engine_kwargs.": _COMPUTING,
    "actor_rollout_ref.rollout.free_cache_engine": _COMPUTING,
    "actor_rollout_ref.rollout.gpu_memory_utilization": _MACHINES,
    "actor_rollout_ref.rollout.layered_summon": _COMPUTING,
    "actor_rollout_ref.rollout.load_format": _COMPUTING,
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": _MEMORY,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": _MEMORY,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": _MEMORY,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": _MEMORY,
    "actor_rollout_ref.rollout.max_num_batched_tokens": _COMPUTING,
    "actor_rollout_ref.rollout.mode": _COMPUTING,
    "actor_rollout_ref.rollout.n_gpus_per_node": _MACHINES,
    "actor_rollout_ref.rollout.name": _COMPUTING,
    "actor_rollout_ref.rollout.nnodes": _MACHINES,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": _MACHINES,
    "critic.": _CRITIC,
    "trainer.critic_warmup": _CRITIC,
    "trainer.max_critic_ckpt_to_keep": _CRITIC,
    "data.dataloader_num_workers": _COMPUTING,
    "data.filter_overlong_prompts_workers": _COMPUTING,
    "data.return_raw_chat": _COMPUTING,
    "data.use_shm": _MACHINES,
    "data.val_batch_size": _COMPUTING,
    "global_profiler.": _LOGGING,
    "ray_kwargs.": _MACHINES,
    "trainer.balance_batch": _MACHINES,
    "trainer.device": _MACHINES,
    "trainer.experiment_name": _LOGGING,
    "trainer.log_val_generations": _LOGGING,
    "trainer.logger": _LOGGING,
    "trainer.n_gpus_per_node": _MACHINES,
    "trainer.nnodes": _MACHINES,
    "trainer.project_name": _LOGGING,
    "trainer.ray_wait_register_center_timeout": _MACHINES,
    "trainer.rollout_data_dir": _LOGGING,
    "trainer.use_v1": _COMPUTING,
    "trainer.validation_data_dir": _LOGGING,
    "trainer.val_before_train": _LOGGING,
}
"""verl's name -> why nothing here follows from it."""

REMEDIES: dict[str, str] = {
    "trainer.total_epochs": "give trainer.total_training_steps: epochs x rows of the data / data.train_batch_size",
    "data.truncation": "take prompts above data.max_prompt_length out of the files, or raise it",
    "trainer.resume_mode": "a run is resumed by groupwise train --resume RUN",
    "trainer.resume_from_path": "a run is resumed by groupwise train --resume RUN",
    "trainer.val_only": "evaluate by groupwise eval MODEL",
    "data.filter_overlong_prompts": "take prompts above data.max_prompt_length out of the files, or raise it",
    "data.prompt_key": "name the column prompt",
    "actor_rollout_ref.model.trust_remote_code": "code that comes with a model is never run",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": "give actor.optim.lr_warmup_steps",
}
"""verl's name -> what to do instead, where a setting cannot be taken over."""

DONE_ANYWAY: dict[str, Any] = {
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor_rollout_ref.actor.shuffle": False,
    "actor_rollout_ref.model.trust_remote_code": False,
    "actor_rollout_ref.rollout.do_sample": True,
    "actor_rollout_ref.rollout.ignore_eos": False,
    "data.filter_overlong_prompts": False,
    "data.prompt_key": "prompt",
    "data.reward_fn_key": "data_source",
    "data.truncation": "error",
    "reward_model.enable": False,
    "trainer.resume_mode": "disable",
    "trainer.val_only": False,
}
"""verl's name -> the one value that asks for what is done here."""

_VALUES: dict[tuple[str, Any], Any] = {
    # vLLM's word for every token, and verl's for no steps of its own.
    ("rollout.top_k", -1): 0,
    ("actor.optim.lr_warmup_steps", -1): 0,
}


def translate(values: Mapping[str, Any], known: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Our names with their values, and the lines that say what was read as what, and what was passed over."""
    ours, values = set(known), {key.lstrip("+"): value for key, value in values.items()}
    translated: dict[str, Any] = {}
    notes: list[str] = []
    passed: dict[str, list[str]] = {}
    values = _with_reward_function(values, notes)
    for key, value in values.items():
        name = _renamed(key)
        is_ours = key in ours or (name in ours and key not in PASSED_OVER)
        reason = None if is_ours else _reason_to_pass(key, values)
        if reason is not None:
            passed.setdefault(reason, []).append(key)
            continue
        if key in REMEDIES and key not in ours:
            raise UnknownNameError(f"there is no setting {key!r} here; {REMEDIES[key]}")
        if name != key:
            notes.append(f"{key} is read as {name}")
        translated[name] = _VALUES.get((name, value), value) if isinstance(value, int) else value
    notes += [f"{', '.join(keys)}: passed over, {reason}" for reason, keys in passed.items()]
    return translated, notes


def _with_reward_function(values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    rest = dict(values)
    for section in REWARD_FUNCTIONS:
        path, name = rest.pop(f"{section}path", None), rest.pop(f"{section}name", "compute_score")
        if path is not None:
            rest["reward.function"] = f"{path}:{name}"
            notes.append(f"{section}path is read as reward.function={rest['reward.function']}")
    return rest


def _renamed(key: str) -> str:
    found = next((name for name in NAMES if _stands_for(name, key)), None)
    return key if found is None else NAMES[found] + key[len(found) :]


def _reason_to_pass(key: str, values: Mapping[str, Any]) -> str | None:
    if key in DONE_ANYWAY and values[key] == DONE_ANYWAY[key]:
        return "it is so here anyway"
    if key == "trainer.total_epochs" and values.get("trainer.total_training_steps") is not None:
        return "trainer.total_training_steps stands over it"
    return next((reason for name, reason in PASSED_OVER.items() if _stands_for(name, key)), None)


def _stands_for(name: str, key: str) -> bool:
    return key == name or (name.endswith(".") and key.startswith(name))
