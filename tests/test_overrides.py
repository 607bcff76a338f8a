"""key=value to typed settings: what is taken, what is refused, and what the refusal says."""

import re

import pytest
from omegaconf import OmegaConf

from groupwise.config import RunConfig
from groupwise.errors import BadValueError, UnknownNameError
from groupwise.overrides import as_dict, build, differences, dump_config, leaf_types, load_config, read_overrides
from groupwise.verl_names import DONE_ANYWAY, NAMES, PASSED_OVER, REMEDIES


def read(*arguments, base=None):
    return read_overrides(arguments, base)[0]


def test_nothing_given_is_the_default_run_with_grpo():
    assert read() == RunConfig()
    assert read().algorithm.adv_estimator == "grpo"


def test_a_setting_of_the_algorithm_keeps_grpo_as_the_estimator():
    config = read("algorithm.gamma=0.9")
    assert (config.algorithm.gamma, config.algorithm.adv_estimator) == (0.9, "grpo")


@pytest.mark.parametrize(
    ("argument", "section", "name", "value"),
    [
        ("rollout.n=8", "rollout", "n", 8),
        ("actor.grad_clip=1", "actor", "grad_clip", 1.0),
        ("actor.grad_clip=1e-3", "actor", "grad_clip", 0.001),
        ("data.shuffle=false", "data", "shuffle", False),
        ("data.train_files=a.parquet", "data", "train_files", ("a.parquet",)),
        ("data.train_files=[a.parquet,b.jsonl]", "data", "train_files", ("a.parquet", "b.jsonl")),
        ("trainer.run_dir=2026", "trainer", "run_dir", "2026"),
        ("trainer.run_dir=null", "trainer", "run_dir", None),
        ("reward.function=my reward.py:score", "reward", "function", "my reward.py:score"),
        ("algorithm.gdpo_reward_weights=[1,0.5]", "algorithm", "gdpo_reward_weights", (1.0, 0.5)),
    ],
)
def test_values_take_the_type_of_their_field(argument, section, name, value):
    assert read(argument)[section][name] == value
    assert type(read(argument)[section][name]) is type(value)


def test_sections_within_sections_are_reached():
    config = read("actor.optim.lr=1e-6", "algorithm.kl_ctrl.kl_coef=0.1", "algorithm.filter_groups.enable=true")
    assert (config.actor.optim.lr, config.algorithm.kl_ctrl.kl_coef) == (1e-6, 0.1)
    assert config.algorithm.filter_groups.enable is True
    assert config.actor.optim.weight_decay == RunConfig().actor.optim.weight_decay


def test_later_arguments_win_and_a_base_is_kept():
    base = {"rollout": {"n": 4, "top_k": 7}}
    assert read("rollout.n=5", "rollout.n=6", base=base).rollout.n == 6
    assert read(base=base).rollout.top_k == 7
    assert base == {"rollout": {"n": 4, "top_k": 7}}


def test_settings_of_a_file_come_before_those_of_the_command_line(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "rollout: {n: 4, top_k: 7}\n"
        "actor_rollout_ref: {actor: {optim: {lr: 1.0e-6}, entropy_coeff: 0.01}}\n"
        "algorithm: {pf_ppo: {weight_pow: 2.0}}\n"
        "data.train_batch_size: 3\n"
    )
    config, notes = read_overrides(["rollout.n=5", "actor.entropy_coeff=0.5"], file=path)
    assert (config.rollout.n, config.rollout.top_k, config.data.train_batch_size) == (5, 7, 3)
    assert (config.actor.optim.lr, config.actor.entropy_coeff) == (1e-6, 0.5)
    assert config.algorithm.pf_ppo == {"weight_pow": 2.0}
    assert len(notes) == 2
    for text, key in (("rollout: {m: 4}", "rollout.m"), ("rolout: null", "rolout"), ("rollout: 3", "rollout")):
        path.write_text(text)
        with pytest.raises(UnknownNameError, match=f"unknown setting '{key}'"):
            read_overrides([], file=path)


@pytest.mark.parametrize("settings", [[], ["algorithm.filter_groups.metric=acc", "data.val_files=[a.jsonl]"]])
def test_a_dumped_config_is_such_a_file(tmp_path, settings):
    path = tmp_path / "config.yaml"
    config = read("rollout.n=5", *settings)
    path.write_text(dump_config(config))
    assert read_overrides([], file=path)[0] == config


def test_names_of_verl_are_understood_with_one_line_each():
    config, notes = read_overrides(
        [
            "actor_rollout_ref.actor.clip_ratio_low=0.1",
            "actor_rollout_ref.rollout.n=3",
            "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
            "custom_reward_function.path=r.py",
            "custom_reward_function.name=score",
        ]
    )
    assert (config.actor.clip_ratio_low, config.rollout.n, config.actor.loss_mode) == (0.1, 3, "gspo")
    assert config.reward.function == "r.py:score"
    assert notes == [
        "custom_reward_function.path is read as reward.function=r.py:score",
        "actor_rollout_ref.actor.clip_ratio_low is read as actor.clip_ratio_low",
        "actor_rollout_ref.rollout.n is read as rollout.n",
        "actor_rollout_ref.actor.policy_loss.loss_mode is read as actor.loss_mode",
    ]


# The GRPO command of verl's documentation, with a reward function and a length of its own.
VERLS_COMMAND = """
algorithm.adv_estimator=grpo
data.train_files=gsm8k/train.parquet
data.val_files=gsm8k/test.parquet
data.train_batch_size=1024
data.max_prompt_length=512
data.max_response_length=1024
data.filter_overlong_prompts=False
data.truncation=error
actor_rollout_ref.model.path=Qwen/Qwen3-8B
actor_rollout_ref.actor.optim.lr=1e-6
actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.actor.ppo_mini_batch_size=256
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32
actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.kl_loss_coef=0.001
actor_rollout_ref.actor.kl_loss_type=low_var_kl
actor_rollout_ref.actor.entropy_coeff=0
actor_rollout_ref.model.enable_gradient_checkpointing=True
actor_rollout_ref.actor.fsdp_config.param_offload=False
actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32
actor_rollout_ref.rollout.tensor_model_parallel_size=2
actor_rollout_ref.rollout.name=vllm
actor_rollout_ref.rollout.gpu_memory_utilization=0.6
actor_rollout_ref.rollout.n=5
actor_rollout_ref.rollout.top_k=-1
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32
actor_rollout_ref.ref.fsdp_config.param_offload=True
algorithm.use_kl_in_reward=False
+reward.custom_reward_function.path=my_reward.py
trainer.critic_warmup=0
trainer.logger=[console,wandb]
trainer.project_name=verl_grpo_example_gsm8k
trainer.n_gpus_per_node=8
trainer.nnodes=1
trainer.save_freq=20
trainer.test_freq=5
trainer.total_epochs=15
trainer.total_training_steps=105
"""


def test_a_command_of_verl_is_taken_as_it_stands():
    config, notes = read_overrides(VERLS_COMMAND.split())
    assert (config.model.path, config.data.train_files) == ("Qwen/Qwen3-8B", ("gsm8k/train.parquet",))
    assert (config.data.train_batch_size, config.actor.ppo_mini_batch_size, config.rollout.n) == (1024, 256, 5)
    assert (config.rollout.top_k, config.actor.use_kl_loss, config.actor.optim.lr) == (0, True, 1e-6)
    assert (config.reward.function, config.trainer.total_training_steps) == ("my_reward.py:compute_score", 105)
    passed = [note for note in notes if "passed over" in note]
    # One line a reason: memory, computing, machines, logging, the critic, what is so anyway, and the epochs.
    assert len(passed) == 7
    asked = [argument.split("=")[0].lstrip("+") for argument in VERLS_COMMAND.split()]
    mentioned = re.split(r"[,:]? ", " ".join(notes))
    assert {key for key in asked if key not in leaf_types(RunConfig)} <= set(mentioned)
    assert "trainer.critic_warmup: passed over, there is no critic" in notes


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("trainer.total_epochs=3", "give trainer.total_training_steps"),
        ("data.filter_overlong_prompts=True", "take prompts above data.max_prompt_length out of the files"),
        ("trainer.resume_mode=auto", "groupwise train --resume RUN"),
        ("actor_rollout_ref.model.trust_remote_code=True", "is never run"),
    ],
)
def test_what_would_change_the_run_and_has_no_counterpart_is_refused_with_what_to_do(argument, remedy):
    with pytest.raises(UnknownNameError, match=f"there is no setting '{argument.split('=')[0]}' here; .*{remedy}"):
        read(argument)


def test_no_name_of_ours_is_passed_over():
    ours = leaf_types(RunConfig)
    assert not [name for name in (*PASSED_OVER, *DONE_ANYWAY, *REMEDIES) if name in ours]
    assert all(name in ours or name.endswith(".") for name in NAMES.values())


def test_what_is_passed_over_is_not_taken_under_another_name():
    config, notes = read_overrides(["actor_rollout_ref.rollout.gpu_memory_utilization=0.9"])
    assert config.rollout.gpu_memory_utilization == RunConfig().rollout.gpu_memory_utilization
    assert any("passed over" in note for note in notes)
    config, _ = read_overrides(["actor_rollout_ref.model.enable_gradient_checkpointing=true"])
    assert config.model.enable_gradient_checkpointing


def test_a_reward_file_without_a_name_means_compute_score():
    assert read("custom_reward_function.path=r.py").reward.function == "r.py:compute_score"


@pytest.mark.parametrize(
    ("argument", "nearest"),
    [
        ("rollout.m=8", "rollout.n"),
        ("rollut.n=3", "rollout.n"),
        ("lr=3", "actor.optim.lr"),
        ("trainer.total_steps=3", "trainer.total_training_steps"),
        ("algorithm.adv_estimater=grpo", "algorithm.adv_estimator"),
    ],
)
def test_an_unknown_key_names_the_nearest(argument, nearest):
    key = argument.split("=")[0]
    with pytest.raises(UnknownNameError, match=f"unknown setting '{key}'; the nearest is '{nearest}'"):
        read(argument)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("rollout.n=x", "rollout.n='x' is str, but rollout.n must be of type int"),
        ("trainer.seed=true", "trainer.seed=True is bool, but trainer.seed must be of type int"),
        ("trainer.seed=1.5", "must be of type int"),
        ("data.shuffle=1", "must be of type bool"),
        ("rollout.n=null", "must be of type int"),
        ("data.train_files=[1.5,[2]]", "must be of type str"),
        ("algorithm.pf_ppo=3", "must be a mapping"),
        ("trainer.seed", "'trainer.seed' is not of the form key=value; write for example"),
        ("=3", "is not of the form key=value"),
        ("data.train_files=[a", "cannot be read"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_key_and_value(argument, message):
    with pytest.raises(BadValueError, match=message.replace("[", r"\[")):
        read(argument)


def test_written_settings_read_back_as_they_were(tmp_path):
    config = read(
        "rollout.n=3", "algorithm.filter_groups.enable=true", "data.train_files=[a,b]", "actor.loss_mode=gspo"
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert build(RunConfig, load_config(path)) == config


def test_a_settings_file_runs_nothing(tmp_path):
    path = tmp_path / "config.yaml"
    canary = tmp_path / "canary"
    path.write_text(f"model: !!python/object/apply:os.system ['touch {canary}']\n")
    with pytest.raises(Exception, match="python/object"):
        load_config(path)
    assert not canary.exists()


def test_a_settings_file_that_is_a_list_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("- a\n- b\n")
    with pytest.raises(BadValueError, match="not a mapping of settings"):
        load_config(path)


def test_an_unknown_key_in_a_file_is_refused_with_its_section():
    with pytest.raises(UnknownNameError, match=r"unknown setting 'actor.optim.learning'; the nearest is 'actor.optim"):
        build(RunConfig, {"actor": {"optim": {"learning": 1.0}}})


def test_differences_name_old_and_new():
    assert differences(read(), read("rollout.n=2", "actor.optim.lr=0.5")) == [
        "rollout.n: 16 -> 2",
        "actor.optim.lr: 0.0003 -> 0.5",
    ]


def test_every_key_has_a_plain_value():
    assert set(leaf_types(RunConfig)) == set(leaves(as_dict(read("algorithm.filter_groups.enable=true"))))
    assert OmegaConf.create(as_dict(RunConfig())).rollout.n == 16


def leaves(nested, prefix=""):
    for key, value in nested.items():
        inner = isinstance(value, dict) and key != "pf_ppo"
        yield from leaves(value, f"{prefix}{key}.") if inner else [prefix + key]
