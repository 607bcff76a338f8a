"""key=value to typed settings: what is taken, what is refused, and what the refusal says."""

import pytest
from omegaconf import OmegaConf

from groupwise.config import RunConfig
from groupwise.errors import BadValueError, UnknownNameError
from groupwise.overrides import as_dict, build, differences, dump_config, leaf_types, load_config, read_overrides


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
        ("trainer.seed", "'trainer.seed' is not a setting; write key=value"),
        ("=3", "is not a setting"),
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
        "actor.optim.lr: 0.0002 -> 0.5",
    ]


def test_every_key_has_a_plain_value():
    assert set(leaf_types(RunConfig)) == set(leaves(as_dict(read("algorithm.filter_groups.enable=true"))))
    assert OmegaConf.create(as_dict(RunConfig())).rollout.n == 16


def leaves(nested, prefix=""):
    for key, value in nested.items():
        inner = isinstance(value, dict) and key != "pf_ppo"
        yield from leaves(value, f"{prefix}{key}.") if inner else [prefix + key]
