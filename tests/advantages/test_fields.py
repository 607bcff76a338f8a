"""A config with some fields changed reads like the one beneath, and leaves it alone."""

import copy
import pickle
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from groupwise.advantages import AlgoConfig
from groupwise.advantages.fields import replace
from groupwise.config import read


class Plain:
    """A settings object that is no mapping."""

    def __init__(self, **values):
        vars(self).update(values)


KINDS = [AlgoConfig, dict, lambda **values: OmegaConf.create(values), SimpleNamespace, Plain]


@pytest.mark.parametrize("make", KINDS)
def test_the_changed_field_reads_changed_in_every_way_and_the_original_does_not(make):
    config = make(norm_adv_by_std_in_grpo=True, gamma=0.5)
    changed = replace(config, norm_adv_by_std_in_grpo=False)
    assert read(changed, "norm_adv_by_std_in_grpo") is False
    assert changed.norm_adv_by_std_in_grpo is changed["norm_adv_by_std_in_grpo"] is False
    assert dict(changed)["norm_adv_by_std_in_grpo"] is False
    assert read(config, "norm_adv_by_std_in_grpo") is True


@pytest.mark.parametrize("make", KINDS)
def test_the_other_fields_read_as_they_did(make):
    changed = replace(make(norm_adv_by_std_in_grpo=True, gamma=0.5), norm_adv_by_std_in_grpo=False)
    assert read(changed, "gamma") == changed["gamma"] == changed.get("gamma") == 0.5
    # A dict has no attributes, and neither has what lies over it.
    assert make is dict or changed.gamma == 0.5
    assert len(changed) == len(list(changed))
    assert changed.get("absent", 7) == 7
    with pytest.raises(AttributeError):
        changed.absent  # noqa: B018
    with pytest.raises(KeyError):
        changed["absent"]


@pytest.mark.parametrize("make", KINDS)
def test_a_changed_config_can_be_copied(make):
    changed = copy.deepcopy(replace(make(norm_adv_by_std_in_grpo=True, gamma=0.5), norm_adv_by_std_in_grpo=False))
    assert (read(changed, "gamma"), read(changed, "norm_adv_by_std_in_grpo")) == (0.5, False)


def test_a_changed_config_can_be_sent_to_another_process():
    changed = pickle.loads(pickle.dumps(replace({"gamma": 0.5, "x": True}, x=False)))
    assert dict(changed) == {"gamma": 0.5, "x": False}


def test_a_dataclass_stays_of_its_class():
    changed = replace(AlgoConfig(gamma=0.5), norm_adv_by_std_in_grpo=False)
    assert changed == AlgoConfig(gamma=0.5, norm_adv_by_std_in_grpo=False)
