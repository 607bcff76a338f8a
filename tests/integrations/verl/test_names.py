"""Every name of verl's that the command line knows is one of verl's."""

import re
from pathlib import Path

import pytest
import verl
from omegaconf import OmegaConf

from groupwise.verl_names import DONE_ANYWAY, NAMES, PASSED_OVER, REMEDIES, REWARD_FUNCTIONS

YAML = Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml"
# Left out of the generated file, where the command line adds it with a plus.
ADDED = {"ray_kwargs."}


@pytest.fixture(scope="module")
def verls():
    """Names of settings and, with a dot behind, of sections."""

    def names(section, prefix=""):
        for name, value in section.items():
            yield f"{prefix}{name}"
            if isinstance(value, dict):
                yield f"{prefix}{name}."
                yield from names(value, f"{prefix}{name}.")

    return set(names(OmegaConf.to_container(OmegaConf.load(YAML), resolve=False)))


@pytest.mark.parametrize("name", sorted({*NAMES, *PASSED_OVER, *DONE_ANYWAY, *REMEDIES, *REWARD_FUNCTIONS} - ADDED))
def test_verl_has_the_name(verls, name):
    assert name in verls


# Read from the page's rows `| setting | verl 0.9.1 | here |`; the short names stand under these sections of verl's.
PAGE = Path(__file__).parents[3] / "docs" / "coming-from-verl.md"
HOMES = {"actor": "actor_rollout_ref.actor", "rollout": "actor_rollout_ref.rollout"}


def test_the_defaults_said_to_be_verls_are_verls():
    config = OmegaConf.load(YAML)
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", PAGE.read_text().split("| setting |")[1], re.M)
    assert len(rows) > 8
    for key, shown in rows:
        section, _, name = key.partition(".")
        value = OmegaConf.select(config, f"{HOMES.get(section, section)}.{name}")
        assert shown == str(OmegaConf.to_container(value) if OmegaConf.is_list(value) else value).replace(" ", ""), key
