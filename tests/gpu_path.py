"""What the tests of the GPU path share: an engine over slots on any device, and the plain pass that all is held to."""

import torch

from groupwise.config import ActorConfig
from groupwise.objectives import LossInputs, Totals, objective
from groupwise.policy.load import wrap
from groupwise.rollout import EmbeddedEngine
from groupwise.rollout.slot_decode import SlotDecoder
from groupwise.update import Updater
from groupwise.update.pack import number_answers, pack
from tiny_models import random_groups, tiny_model, tiny_tokenizer

# Groups of one and of five, answers of one token, of two (one place in the row), and a prompt of one token.
PROMPTS = [3, 9, 5, 1]
ANSWERS = [[4, 1, 7], [1, 1], [12, 30, 2, 2, 2], [5]]
GROUPS = random_groups(PROMPTS, ANSWERS)
ADVANTAGES = [1.0, -0.5, 0.25, 2.0, -1.0, 0.5, -0.75, 1.5, 0.0, -2.0, 1.0]
TEMPERATURE = 0.7
ENTROPY = ActorConfig(loss_agg_mode="token-mean", entropy_coeff=0.1)


# Heads as narrow as the GPU's kernels take, and weights of a size as models have them: wilder ones amplify rounding.
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "initializer_range": 0.1}
_GPT2_SIZES = {"n_embd": 64, "initializer_range": 0.1}


def sized_model(family="qwen3", dtype=torch.float32, seed=0, **changes):
    return tiny_model(family, dtype, seed, **(_GPT2_SIZES if family == "gpt2" else _SIZES) | changes)


def sized_policy(family="qwen3", dtype=torch.float32, device="cuda", *, compiles=False, checkpoints=False, **changes):
    """`changes`: the seed, and settings of the model."""
    model = sized_model(family, dtype, **changes).to(device)
    return wrap(model, tiny_tokenizer(), compiles=compiles, checkpoints=checkpoints)


def exact_policy(device="cuda"):
    """The bfloat16 model's very weights, computed with in float32."""
    return wrap(sized_model(dtype=torch.bfloat16).float().to(device), tiny_tokenizer())


def slot_engine(policy, max_num_seqs, max_bytes=None):
    engine = EmbeddedEngine(policy, max_num_seqs)
    engine._slot_decoder = SlotDecoder(policy, max_num_seqs, max_bytes)
    return engine


def answers_of(groups):
    return [answer for group in groups for answer in group.completions]


def num_differing(groups, others):
    """How many answers have other tokens."""
    pairs = zip(answers_of(groups), answers_of(others), strict=True)
    return sum(ours.token_ids != theirs.token_ids for ours, theirs in pairs)


def plain_log_pi(policy, prompt, tokens, temperature=1.0):
    """[tokens, V]: one plain forward pass over a prompt and one answer, normalised in float32 at least."""
    ids = torch.tensor([[*prompt, *tokens]], device=policy.device)
    logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    return (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).log_softmax(-1)


def plain_log_probs(policy, groups, temperature=1.0):
    """Of every answer's tokens, all in one row."""
    found = []
    with torch.no_grad():
        for group in groups:
            for answer in group.completions:
                tokens = torch.tensor(answer.token_ids, device=policy.device)
                log_pi = plain_log_pi(policy, group.prompt.token_ids, answer.token_ids, temperature)
                found.append(log_pi.gather(-1, tokens[:, None])[:, 0])
    return torch.cat(found)


def packed_log_probs(policy, groups, form, budget=10**6, temperature=1.0):
    answers = number_answers(groups)
    found = torch.full((sum(len(a.completion.token_ids) for a in answers),), float("nan"), dtype=torch.float64)
    for micro in pack(answers, budget, policy.device, form):
        with torch.no_grad():
            statistics = policy.token_statistics(micro.hidden(policy), micro.targets, temperature=temperature)
        found[micro.tokens.cpu()] = statistics.log_probs.double().cpu()
    return found


def plain_gradient(policy, config, groups=GROUPS, advantages=ADVANTAGES):
    """The loss and its gradient from one plain forward pass per answer, weighed by hand."""
    answers = [(g.prompt.token_ids, a.token_ids) for g in groups for a in g.completions]
    num_tokens = sum(len(tokens) for _, tokens in answers)
    loss = 0.0
    for (prompt, tokens), advantage in zip(answers, advantages, strict=True):
        log_pi = plain_log_pi(policy, prompt, tokens, TEMPERATURE)
        chosen = log_pi.gather(-1, torch.tensor(tokens, device=policy.device)[:, None])[:, 0]
        entropy = -(log_pi.exp() * log_pi).sum(-1)
        ratio = (chosen - chosen.detach()).exp()
        loss = loss + (-advantage * ratio - config.entropy_coeff * entropy).sum() / num_tokens
    loss.backward()
    gradient = flat([parameter.grad for _, parameter in policy.parameters()])
    policy.model.zero_grad()
    return loss.item(), gradient


def updater_of(policy, config=None, total_steps=10, **options):
    config = config or ActorConfig()

    def loss_of_step(lengths, prompt_ids):
        totals = Totals.count(lengths, prompt_ids, 30)
        return lambda fields: objective(LossInputs(**fields), config, totals)

    return Updater(policy, config, loss_of_step, total_steps=total_steps, **options)


def packed_gradient(policy, config, groups=GROUPS, advantages=ADVANTAGES):
    """Loss and gradient as they reach the optimiser; nothing is learned."""
    updater = updater_of(policy, config, temperature=TEMPERATURE)
    found = {}

    def capture(rate, is_sound=True):
        learned = updater._optimizer._learned.values()
        found["gradient"] = flat([parameter.grad for parameter in learned])
        policy.model.zero_grad()
        return 0.0

    updater._optimizer.step = capture
    metrics = updater.step(groups, advantages)
    return metrics["loss"], found["gradient"]


def flat(tensors):
    return torch.cat([tensor.flatten().double().cpu() for tensor in tensors])


def relative_gap(found, expected):
    return ((found - expected).norm() / expected.norm()).item()
