from dataclasses import replace

import pytest
import torch

from groupwise.config import ActorConfig, OptimConfig
from groupwise.errors import BadValueError, GroupwiseWarning
from groupwise.objectives import LossInputs, LossOutputs, Totals, objective
from groupwise.rollout import EmbeddedEngine
from groupwise.types import Sampling
from groupwise.update import Updater
from tiny_models import random_groups, random_prompts, tiny_policy

PROMPTS = [3, 9, 5, 1]
ANSWERS = [[4, 1, 7], [1, 1], [12, 30, 2, 2, 2], [5]]
GROUPS = random_groups(PROMPTS, ANSWERS)
ADVANTAGES = [1.0, -0.5, 0.25, 2.0, -1.0, 0.5, -0.75, 1.5, 0.0, -2.0, 1.0]


def updater_for(policy, config=None, total_steps=10, **options):
    config = config or ActorConfig()

    def loss_of_step(lengths, prompt_ids):
        totals = Totals.count(lengths, prompt_ids, 30)
        return lambda fields: objective(LossInputs(**fields), config, totals)

    return Updater(policy, config, loss_of_step, total_steps=total_steps, **options)


def weights_of(policy):
    return {name: parameter.detach().clone() for name, parameter in policy.parameters()}


def padded_gradient(policy, config, temperature):
    """The loss and its gradient from one plain forward pass per answer, weighed by hand."""
    answers = [(g.prompt.token_ids, a.token_ids) for g in GROUPS for a in g.completions]
    num_tokens = sum(len(tokens) for _, tokens in answers)
    loss = 0.0
    for (prompt, tokens), advantage in zip(answers, ADVANTAGES, strict=True):
        logits = policy.model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        log_pi = (logits / temperature).log_softmax(-1)
        chosen = log_pi.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        entropy = -(log_pi.exp() * log_pi).sum(-1)
        ratio = (chosen - chosen.detach()).exp()
        loss = loss + (-advantage * ratio - config.entropy_coeff * entropy).sum() / num_tokens
    loss.backward()
    gradient = torch.cat([parameter.grad.flatten() for _, parameter in policy.parameters()])
    policy.model.zero_grad()
    return loss.item(), gradient


def packed_gradient(policy, config, temperature, monkeypatch):
    """Loss and gradient as they reach the optimiser."""
    updater = updater_for(policy, config, temperature=temperature)
    found = {}

    def capture(rate, is_sound=True):
        found["gradient"] = torch.cat([parameter.grad.flatten() for _, parameter in policy.parameters()])
        policy.model.zero_grad()
        return 0.0

    monkeypatch.setattr(updater._optimizer, "step", capture)
    metrics = updater.step(GROUPS, ADVANTAGES)
    return metrics["loss"], found["gradient"]


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("packs", [True, False])
def test_loss_and_gradient_are_those_of_one_plain_pass_per_answer(family, dtype, tolerance, packs, monkeypatch):
    config = ActorConfig(loss_agg_mode="token-mean", entropy_coeff=0.1)
    policy = tiny_policy(family, dtype)
    policy.packs = packs
    expected_loss, expected = padded_gradient(policy, config, 0.7)
    for budget in (10**6, 90, 38):
        cut = replace(config, micro_batch_tokens=budget)
        if packs:
            loss, gradient = packed_gradient(policy, cut, 0.7, monkeypatch)
        else:
            with pytest.warns(GroupwiseWarning, match="computes the prompt once per answer"):
                loss, gradient = packed_gradient(policy, cut, 0.7, monkeypatch)
        assert loss == pytest.approx(expected_loss, abs=tolerance)
        assert (gradient - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum-norm", "prompt-mean"])
def test_every_way_to_average_gives_one_loss_for_all_micro_batches(mode, monkeypatch):
    policy = tiny_policy(dtype=torch.float64)
    config = ActorConfig(loss_agg_mode=mode)
    results = [
        packed_gradient(policy, replace(config, micro_batch_tokens=budget), 1.0, monkeypatch)
        for budget in (10**6, 60, 38)
    ]
    for loss, gradient in results[1:]:
        assert loss == pytest.approx(results[0][0], abs=1e-10)
        assert (gradient - results[0][1]).norm() <= 1e-10 * gradient.norm()


def test_logits_in_chunks_change_nothing(monkeypatch):
    policy = tiny_policy(dtype=torch.float64)
    config = ActorConfig(entropy_coeff=0.1)
    whole = packed_gradient(policy, config, 1.0, monkeypatch)
    plain = policy.token_statistics
    monkeypatch.setattr(policy, "token_statistics", lambda *a, **k: plain(*a, **k, chunk_elements=40 * 5))
    cut = packed_gradient(policy, config, 1.0, monkeypatch)
    assert cut[0] == pytest.approx(whole[0], abs=1e-12)
    assert (cut[1] - whole[1]).norm() <= 1e-12 * whole[1].norm()


def test_first_step_is_adamw_on_the_clipped_gradient(monkeypatch):
    config = ActorConfig(grad_clip=0.5, optim=OptimConfig(lr=0.01, weight_decay=0.1))
    policy = tiny_policy(dtype=torch.float64)
    before = weights_of(policy)
    _, gradient = packed_gradient(policy, config, 1.0, monkeypatch)
    metrics = updater_for(policy, config).step(GROUPS, ADVANTAGES)
    assert metrics["grad_norm"] == pytest.approx(gradient.norm().item())
    assert metrics["grad_norm"] > 0.5
    clipped = gradient * (0.5 / gradient.norm())
    # After one step both moments are unbiased to g and g^2: a step of lr * g / (|g| + 1e-8), and the decay.
    start = torch.cat([weight.flatten() for weight in before.values()])
    expected = start * (1 - 0.01 * 0.1) - 0.01 * clipped / (clipped.abs() + 1e-8)
    after = torch.cat([weight.flatten() for weight in weights_of(policy).values()])
    # The norm to clip by has 1e-6 added to it, which reaches parameters with a gradient near 1e-8.
    torch.testing.assert_close(after, expected, atol=1e-6, rtol=0)


def test_old_log_probs_are_computed_once_for_several_updates_and_not_for_one(monkeypatch):
    policy = tiny_policy()
    seen = []

    def loss_of_step(lengths, prompt_ids):
        def loss(fields):
            seen.append((fields["old_log_probs"], fields["log_probs"].detach()))
            return LossOutputs(-fields["log_probs"].sum(), {})

        return loss

    Updater(policy, ActorConfig(), loss_of_step, total_steps=1).step(GROUPS, ADVANTAGES)
    assert [old for old, _ in seen] == [None]
    seen.clear()
    Updater(policy, ActorConfig(ppo_epochs=2), loss_of_step, total_steps=1).step(GROUPS, ADVANTAGES)
    (old_first, present_first), (old_second, present_second) = seen
    assert torch.equal(old_first, present_first)
    assert torch.equal(old_second, old_first)
    assert not torch.equal(present_second, present_first)


def test_mini_batches_are_cut_between_prompts_and_see_their_own_advantages():
    rows = []

    def loss_of_step(lengths, prompt_ids):
        def loss(fields):
            rows.append((lengths.tolist(), prompt_ids.tolist(), sorted(fields["advantages"].tolist())))
            return LossOutputs(fields["log_probs"].sum(), {})

        return loss

    Updater(tiny_policy(), ActorConfig(ppo_mini_batch_size=3), loss_of_step, total_steps=1).step(GROUPS, ADVANTAGES)
    assert rows == [
        ([4, 1, 7, 1, 1, 12, 30, 2, 2, 2], [0, 0, 0, 1, 1, 2, 2, 2, 2, 2], sorted(ADVANTAGES[:10])),
        ([5], [0], ADVANTAGES[10:]),
    ]


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_a_number_that_is_not_finite_changes_nothing_and_is_counted(bad):
    policy = tiny_policy()
    config = ActorConfig(micro_batch_tokens=60)
    is_bad = False

    def loss_of_step(lengths, prompt_ids):
        def loss(fields):
            log_probs = fields["log_probs"]
            # The root of 0 is finite and its slope is not.
            spoiled = log_probs.sum() * float("inf") if bad == "loss" else (log_probs - log_probs.detach()).sqrt().sum()
            return LossOutputs(spoiled if is_bad else log_probs.sum(), {})

        return loss

    updater = Updater(policy, config, loss_of_step, total_steps=10)
    assert updater.step(GROUPS, ADVANTAGES)["update/skipped"] == 0
    weights, (moments, numbers) = weights_of(policy), updater.state()
    moments = {name: moment.clone() for name, moment in moments.items()}
    is_bad = True
    metrics = updater.step(GROUPS, ADVANTAGES)
    assert metrics["update/skipped"] == 1
    assert "grad_norm" not in metrics
    assert all(torch.equal(weights[name], weight) for name, weight in weights_of(policy).items())
    after, numbers_after = updater.state()
    assert all(torch.equal(moments[name], moment) for name, moment in after.items())
    assert numbers_after["num_updates"] == numbers["num_updates"]
    is_bad = False
    assert updater.step(GROUPS, ADVANTAGES)["update/skipped"] == 0


def test_a_run_cut_in_two_is_the_run_in_one_piece():
    config = ActorConfig(ppo_epochs=2, ppo_mini_batch_size=2, use_kl_loss=True, optim=OptimConfig(lr=0.01))
    straight = tiny_policy()
    updater = updater_for(straight, config)
    for _ in range(2):
        updater.step(GROUPS, ADVANTAGES)
    tensors, numbers = updater.state()
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    weights = weights_of(straight)
    updater.step(GROUPS, ADVANTAGES)
    resumed = tiny_policy(seed=1)
    again = updater_for(resumed, config)
    resumed.load_weights(weights)
    again.load_state(saved, numbers)
    again.step(GROUPS, ADVANTAGES)
    for (name, expected), found in zip(weights_of(straight).items(), weights_of(resumed).values(), strict=True):
        assert torch.equal(expected, found), name


def test_the_reference_stays_behind_until_it_is_refreshed():
    policy = tiny_policy()
    updater = updater_for(policy, ActorConfig(use_kl_loss=True, optim=OptimConfig(lr=0.05)))
    first = updater.log_probs(GROUPS)
    updater.step(GROUPS, ADVANTAGES)
    assert all(map(torch.equal, updater.log_probs(GROUPS, reference=True), first))
    assert not torch.equal(updater.log_probs(GROUPS)[0], first[0])
    assert updater.step(GROUPS, ADVANTAGES)["actor/kl"] > 0
    updater.refresh_reference()
    assert torch.equal(updater.log_probs(GROUPS, reference=True)[0], updater.log_probs(GROUPS)[0])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_reference_is_renewed_every_so_many_steps(every):
    policy = tiny_policy()
    config = ActorConfig(ref_model_sync_steps=every, optim=OptimConfig(lr=0.05))
    updater = updater_for(policy, config, keep_reference=True)
    expected = updater.log_probs(GROUPS)
    for step in range(1, 6):
        updater.step(GROUPS, ADVANTAGES)
        if step % every == 0:
            expected = updater.log_probs(GROUPS)
        assert all(map(torch.equal, updater.log_probs(GROUPS, reference=True), expected)), step


def test_a_reference_kept_for_the_reward_is_state_and_costs_the_loss_nothing(monkeypatch):
    policy = tiny_policy()
    updater = updater_for(policy, ActorConfig(optim=OptimConfig(lr=0.05)), keep_reference=True)
    reference = updater._reference
    first = updater.log_probs(GROUPS)
    monkeypatch.setattr(reference, "hidden_states", None)
    assert "actor/kl" not in updater.step(GROUPS, ADVANTAGES)
    saved, numbers = updater.state()
    again = updater_for(policy, ActorConfig(), keep_reference=True)
    again.load_state(saved, numbers)
    assert all(map(torch.equal, again.log_probs(GROUPS, reference=True), first))


def test_a_kl_term_without_weight_needs_no_reference():
    updater = updater_for(tiny_policy(), ActorConfig(use_kl_loss=True, kl_loss_coef=0.0))
    assert "actor/kl" not in updater.step(GROUPS, ADVANTAGES)
    assert not any(name.startswith("reference.") for name in updater.state()[0])


def test_without_a_kl_term_there_is_no_reference():
    updater = updater_for(tiny_policy())
    assert not any(name.startswith("reference.") for name in updater.state()[0])
    with pytest.raises(BadValueError, match="no reference policy"):
        updater.log_probs(GROUPS, reference=True)


def test_sum_pi_squared_is_the_chance_that_two_draws_agree():
    policy = tiny_policy(dtype=torch.float64)
    found = updater_for(policy, temperature=0.7).sum_pi_squared(GROUPS)
    answers = [(g.prompt.token_ids, a.token_ids) for g in GROUPS for a in g.completions]
    for values, (prompt, tokens) in zip(found, answers, strict=True):
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(values, (logits / 0.7).softmax(-1).square().sum(-1), atol=1e-12, rtol=0)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_the_sampler_and_the_trainer_agree_on_every_token(temperature):
    policy = tiny_policy(initializer_range=0.1)
    groups = EmbeddedEngine(policy, 5).generate(random_prompts(PROMPTS), 4, Sampling(20, temperature=temperature))
    metrics = updater_for(policy, temperature=temperature).step(groups, [0.5] * 16)
    assert metrics["rollout/log_prob_gap/max"] < 1e-5
    assert metrics["actor/ratio/max"] == 1.0


def test_a_failed_answer_takes_no_part():
    failed = GROUPS[0].completions[1].judged(None, {}, "raised")
    with_failure = replace(GROUPS[0], completions=(GROUPS[0].completions[0], failed, GROUPS[0].completions[2]))
    without = replace(GROUPS[0], completions=(GROUPS[0].completions[0], GROUPS[0].completions[2]))
    first, second = tiny_policy(), tiny_policy()
    updater_for(first).step([with_failure], [1.0, 0.0, -1.0])
    updater_for(second).step([without], [1.0, -1.0])
    assert all(map(torch.equal, weights_of(first).values(), weights_of(second).values()))


LENGTHS = [length for lengths in ANSWERS for length in lengths]


@pytest.mark.parametrize("budget", [10**6, 60, 38])
def test_one_number_per_token_that_is_the_same_all_along_is_one_per_answer(budget):
    spread = [torch.full((n,), a, dtype=torch.float64) for n, a in zip(LENGTHS, ADVANTAGES, strict=True)]
    whole, tokens = tiny_policy(dtype=torch.float64), tiny_policy(dtype=torch.float64)
    config = ActorConfig(ppo_mini_batch_size=2)
    expected = updater_for(whole, config).step(GROUPS, ADVANTAGES)
    assert updater_for(tokens, replace(config, micro_batch_tokens=budget)).step(GROUPS, spread)["loss"] == (
        pytest.approx(expected["loss"], abs=1e-12)
    )
    for before, after in zip(weights_of(whole).values(), weights_of(tokens).values(), strict=True):
        torch.testing.assert_close(after, before, atol=1e-9, rtol=0)


def test_a_number_per_token_stands_at_its_token_and_a_failed_answer_takes_none():
    failed = GROUPS[0].completions[1].judged(None, {}, "raised")
    groups = [replace(GROUPS[0], completions=(GROUPS[0].completions[0], failed, *GROUPS[0].completions[2:]))]
    seen = {}

    def loss_of_step(lengths, prompt_ids):
        def loss(fields):
            assert fields["per_token"] is True
            for row, value in zip(fields["sequence_ids"].tolist(), fields["advantages"].tolist(), strict=True):
                seen.setdefault(row, []).append(value)
            return LossOutputs(fields["log_probs"].sum(), {})

        return loss

    rows = [torch.arange(4.0), torch.full((1,), torch.nan), torch.arange(10.0, 17.0)]
    Updater(tiny_policy(), ActorConfig(), loss_of_step, total_steps=1).step(groups, rows)
    assert sorted(seen.values()) == [[0.0, 1.0, 2.0, 3.0], list(range(10, 17))]


def test_one_number_per_token_is_asked_for():
    rows = [torch.zeros(n) for n in LENGTHS]
    with pytest.raises(BadValueError, match="give one number per token"):
        updater_for(tiny_policy()).step(GROUPS, [*rows[:-1], torch.zeros(4)])


def test_one_advantage_per_answer_is_asked_for():
    with pytest.raises(BadValueError, match=r"shape \(3,\) for 11 answers"):
        updater_for(tiny_policy()).step(GROUPS, [1.0, 2.0, 3.0])


def test_tokens_selected_over_the_step_reach_their_micro_batches():
    policy = tiny_policy()
    seen = []

    def loss_of_step(lengths, prompt_ids):
        def loss(fields):
            seen.append((fields["log_probs"].detach(), fields["selected"]))
            return LossOutputs(fields["log_probs"].sum(), {})

        return loss

    def unlikely(fields):
        assert len(fields["log_probs"]) == sum(map(sum, ANSWERS))
        return fields["log_probs"] < -3

    config = ActorConfig(micro_batch_tokens=45)
    Updater(policy, config, loss_of_step, total_steps=1, select=unlikely).step(GROUPS, ADVANTAGES)
    assert len(seen) > 1
    for log_probs, selected in seen:
        assert torch.equal(selected, log_probs < -3)


def test_a_batch_without_a_token_to_learn_from_changes_nothing():
    policy = tiny_policy()
    before = weights_of(policy)
    failed = tuple(answer.judged(None, {}, "raised") for answer in GROUPS[0].completions)
    metrics = updater_for(policy).step([replace(GROUPS[0], completions=failed)], [0.0] * 3)
    assert metrics["loss"] == metrics["grad_norm"] == metrics["update/skipped"] == 0
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(policy).items())


def test_an_engine_without_log_probs_is_not_compared_with():
    silent = tuple(replace(answer, log_probs=()) for answer in GROUPS[0].completions)
    policy = tiny_policy()
    alone = updater_for(policy).step([replace(GROUPS[0], completions=silent)], [1.0, 0.0, -1.0])
    assert "rollout/log_prob_gap" not in alone
    groups = [replace(GROUPS[0], completions=(silent[0], *GROUPS[0].completions[1:]))]
    expected = updater_for(tiny_policy()).log_probs(groups)[1:]
    found = updater_for(tiny_policy()).step(groups, [1.0, 0.0, -1.0])["rollout/log_prob_gap"]
    # The sampler is recorded as having said 0 of every token.
    assert found == pytest.approx(torch.cat(expected).abs().mean().item())
