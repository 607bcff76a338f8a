"""Every estimator of verl 0.9.1 beside ours on random batches: same numbers, same dtype.

Compared at response tokens. What stands outside the mask, and where else ours differs on purpose, is in
test_differences.py.
"""

import inspect

import pytest
import torch
from verl.trainer.config import AlgoConfig as VerlConfig
from verl.trainer.ppo import core_algos

from groupwise import advantages
from integrations.verl.batches import CASES, EXACT32, GDPO_KEYS, call, random_batch

SEEDS = range(25)
DTYPES = {"float64": torch.float64, "float32": torch.float32}
MASKS = {"like": None, "int64": torch.int64, "bool": torch.bool}
RUNS = [
    pytest.param(case, dtype, mask, norm, id=f"{case.name}-{dtype}-{mask}" + ("" if norm else "-plain"))
    for case in CASES
    for dtype in DTYPES
    for mask in MASKS
    if case.bool_mask or mask != "bool"
    for norm in ((True, False) if case.has_norm else (True,))
]


@pytest.mark.parametrize(("case", "dtype", "mask", "norm"), RUNS)
def test_same_numbers_as_verl(case, dtype, mask, norm):
    tolerance = case.exact64 if dtype == "float64" else EXACT32
    for seed in SEEDS:
        fields = random_batch(seed, DTYPES[dtype], MASKS[mask], case.singletons)
        config = VerlConfig(gamma=0.9, norm_adv_by_std_in_grpo=norm, gdpo_reward_keys=GDPO_KEYS)
        fields |= {"norm_adv_by_std_in_grpo": norm, "config": config}
        if seed % 3:
            del fields["rollout_is_weights"]
        theirs = call(getattr(core_algos, case.function), fields)
        ours = call(getattr(advantages, case.function), fields)
        counted = fields["response_mask"].bool()
        for name, a, b in zip(("advantages", "returns"), ours, theirs, strict=True):
            # verl's gdpo is float32 unless the mask is more; ours keeps the precision of the rewards.
            assert a.dtype == b.dtype or (case.name, dtype, b.dtype) == ("gdpo", "float64", torch.float32)
            scale = b[counted].abs().clamp_min(1)
            assert ((a - b)[counted].abs() / scale).max() <= tolerance, (seed, name)


def test_gdpo_without_keys_to_read_normalises_the_summed_reward_as_verl():
    for seed in SEEDS:
        fields = random_batch(seed, torch.float32)
        given = fields["token_level_rewards"], fields["response_mask"], fields["index"]
        theirs, _ = core_algos.compute_gdpo_outcome_advantage(*given)
        ours, _ = advantages.compute_gdpo_outcome_advantage(*given)
        torch.testing.assert_close(ours, theirs, rtol=EXACT32, atol=EXACT32)


@pytest.mark.parametrize("weights", [[0.25, 4.0], (1, -1)])
def test_gdpo_weighs_the_parts_as_verl(weights):
    config = VerlConfig(gdpo_reward_keys=GDPO_KEYS, gdpo_reward_weights=weights)
    for seed in SEEDS:
        fields = random_batch(seed, torch.float32) | {"config": config}
        theirs, _ = call(core_algos.compute_gdpo_outcome_advantage, fields)
        ours, _ = call(advantages.compute_gdpo_outcome_advantage, fields)
        torch.testing.assert_close(ours, theirs, rtol=EXACT32, atol=EXACT32)


@pytest.mark.parametrize("case", [case for case in CASES if "optimal" in case.name], ids=lambda case: case.name)
def test_token_baselines_without_the_rule_for_the_tail_as_verl(case):
    for seed in SEEDS:
        fields = random_batch(seed) | {"handle_zero_tail": False}
        theirs, _ = call(getattr(core_algos, case.function), fields)
        ours, _ = call(getattr(advantages, case.function), fields)
        counted = fields["response_mask"].bool()
        torch.testing.assert_close(ours[counted], theirs[counted], rtol=case.exact64, atol=case.exact64)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_signature_starts_with_verls_names_in_order_with_equal_defaults(case):
    theirs = list(inspect.signature(getattr(core_algos, case.function)).parameters.values())
    ours = list(inspect.signature(getattr(advantages, case.function)).parameters.values())
    takes_more = theirs[-1].kind is inspect.Parameter.VAR_KEYWORD
    if takes_more:
        assert ours[-1].kind is inspect.Parameter.VAR_KEYWORD
        theirs = theirs[:-1]
    for a, b in zip(ours, theirs, strict=False):
        assert (a.name, a.kind) == (b.name, b.kind)
        if (case.name, a.name) == ("gpg", "alpha"):
            # verl overwrites the argument it is given; None asks for what it is overwritten with.
            assert (a.default, b.default) == (None, 1.0)
        else:
            assert a.default == b.default, a.name
    # What comes after verl's can only be given by name: no positional call changes its meaning.
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in ours[len(theirs) :])


def test_the_enum_has_verls_names_and_values():
    ours = {member.name: member.value for member in advantages.AdvantageEstimator}
    assert ours == {member.name: member.value for member in core_algos.AdvantageEstimator}
    assert {case.name for case in CASES} == set(ours.values()) == set(core_algos.ADV_ESTIMATOR_REGISTRY)
    for case in CASES:
        assert core_algos.ADV_ESTIMATOR_REGISTRY[case.name] is getattr(core_algos, case.function)
        assert advantages.get_adv_estimator_fn(core_algos.AdvantageEstimator(case.name)) is getattr(
            advantages, case.function
        )
