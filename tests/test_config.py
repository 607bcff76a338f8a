"""Settings: verl's names and defaults, read in every way, built from every mapping."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from groupwise.config import AlgoConfig, FilterGroupsConfig, KLControlConfig, RunConfig, read
from groupwise.errors import BadValueError, UnknownNameError

# verl 0.9.1's AlgoConfig, field by field.
VERL_DEFAULTS = {
    "gamma": 1.0,
    "lam": 1.0,
    "adv_estimator": "gae",
    "norm_adv_by_std_in_grpo": True,
    "use_kl_in_reward": False,
    "kl_penalty": "kl",
    "kl_ctrl": KLControlConfig(type="fixed", kl_coef=0.001, horizon=10000, target_kl=0.1),
    "use_pf_ppo": False,
    "pf_ppo": {},
    "filter_groups": None,
    "rollout_correction": None,
    "gdpo_reward_keys": None,
    "gdpo_reward_weights": None,
}
# The `algorithm:` section of verl 0.9.1's ppo_trainer.yaml.
VERL_SECTION = """
_target_: verl.trainer.config.AlgoConfig
gamma: 1.0
lam: 1.0
adv_estimator: gae
norm_adv_by_std_in_grpo: True
filter_groups:
  _target_: verl.trainer.config.FilterGroupsConfig
  enable: False
  metric: reward
  max_num_gen_batches: 0
  max_inflight_gen_batches: 1
use_kl_in_reward: False
kl_penalty: kl
kl_ctrl:
  _target_: verl.trainer.config.KLControlConfig
  type: adaptive
  kl_coef: 0.002
  horizon: 10000
  target_kl: 0.1
use_pf_ppo: False
pf_ppo:
  reweight_method: pow
  weight_pow: 2.0
"""


def test_verls_fields_come_first_with_verls_defaults():
    config = AlgoConfig()
    assert list(config)[: len(VERL_DEFAULTS)] == list(VERL_DEFAULTS)
    assert {name: config[name] for name in VERL_DEFAULTS} == VERL_DEFAULTS


def test_our_own_fields_change_nothing_until_they_are_set():
    ours = {name: value for name, value in AlgoConfig().items() if name not in VERL_DEFAULTS}
    assert ours == {"epsilon": None, "convention": "verl", "exclude_empty": False, "k": 2}


def test_a_run_has_grpo_as_its_default_and_the_section_alone_has_verls():
    assert AlgoConfig().adv_estimator == "gae"
    assert RunConfig().algorithm.adv_estimator == "grpo"


def test_a_config_is_read_by_attribute_by_key_by_get_and_as_a_mapping():
    config = AlgoConfig(gamma=0.5)
    assert config.gamma == config["gamma"] == config.get("gamma") == {**config}["gamma"] == 0.5
    assert config.get("no_such_field", 7) == 7
    assert "gamma" in config
    assert "no_such_field" not in config
    assert len(config) == len(list(config)) == len(AlgoConfig.names())


def test_a_field_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown AlgoConfig field 'gama'; the nearest is 'gamma'; known: adv_"):
        AlgoConfig()["gama"]


def test_a_config_cannot_be_changed():
    with pytest.raises(AttributeError):
        AlgoConfig().gamma = 0.5


@pytest.mark.parametrize("make", [OmegaConf.create, lambda text: OmegaConf.to_container(OmegaConf.create(text))])
def test_verls_yaml_section_builds_one_as_it_stands(make):
    config = AlgoConfig.from_mapping(make(VERL_SECTION))
    assert config.filter_groups == FilterGroupsConfig(enable=False, metric="reward")
    assert config.kl_ctrl == KLControlConfig(type="adaptive", kl_coef=0.002)
    assert dict(config.pf_ppo) == {"reweight_method": "pow", "weight_pow": 2.0}
    assert (config.gamma, config.adv_estimator, config.convention) == (1.0, "gae", "verl")


def test_a_config_builds_its_own_copy():
    config = AlgoConfig(gamma=0.5, gdpo_reward_keys=("a",), filter_groups=FilterGroupsConfig(enable=True))
    assert AlgoConfig.from_mapping(config) == config


@pytest.mark.parametrize("make", [dict, OmegaConf.create])
def test_an_unknown_key_is_refused_with_the_nearest_at_any_depth(make):
    with pytest.raises(UnknownNameError, match=r"unknown AlgoConfig field 'lamm'; the nearest is 'lam'"):
        AlgoConfig.from_mapping(make({"lamm": 1.0}))
    with pytest.raises(UnknownNameError, match=r"unknown KLControlConfig field 'coef'; the nearest is 'kl_coef'"):
        AlgoConfig.from_mapping(make({"kl_ctrl": {"coef": 0.1}}))
    with pytest.raises(UnknownNameError, match=r"unknown FilterGroupsConfig field 'enabled'; the nearest is 'enable'"):
        AlgoConfig(filter_groups=make({"enabled": True}))


def test_the_parts_of_gdpo_become_tuples():
    config = AlgoConfig(gdpo_reward_keys=["a", "b"], gdpo_reward_weights=OmegaConf.create([1.0, 2.0]))
    assert config.gdpo_reward_keys == ("a", "b")
    assert config.gdpo_reward_weights == (1.0, 2.0)


@pytest.mark.parametrize(("gamma", "lam"), [(1.5, 1.0), (-0.1, 1.0), (1.0, 1.1), (1.0, -1.0)])
def test_a_discount_outside_zero_to_one_is_refused(gamma, lam):
    with pytest.raises(BadValueError, match=rf"gamma={gamma}, lam={lam}: both are factors between 0 and 1; 1.0 is no"):
        AlgoConfig(gamma=gamma, lam=lam)


def struct_node(**values):
    node = OmegaConf.create(values)
    OmegaConf.set_struct(node, True)
    return node


@pytest.mark.parametrize("make", [dict, SimpleNamespace, struct_node, lambda **values: OmegaConf.create(values)])
def test_a_field_that_is_absent_or_none_reads_as_the_default(make):
    assert read(make(gamma=0.0), "gamma", 3) == 0.0
    assert read(make(gamma=False), "gamma", True) is False
    assert read(make(gamma=None), "gamma", 3) == 3
    assert read(make(gamma=0.5), "k", 3) == 3
    assert read(make(gamma=0.5), "k") is None


def test_without_a_config_every_field_is_the_default():
    assert read(None, "gamma", 3) == 3
    assert read(None, "gamma") is None


def test_a_field_of_ours_reads_from_ours():
    assert read(AlgoConfig(k=4), "k", 3) == 4
    assert read(AlgoConfig(), "epsilon", 1e-6) == 1e-6
