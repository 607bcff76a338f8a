"""The embedded engine: answers sampled in this process, with the very weights that are being trained."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from groupwise.errors import BadValueError, GroupwiseWarning
from groupwise.rollout.decode import Decoder
from groupwise.rollout.generate_decode import decode_by_generate
from groupwise.rollout.plain_layers import PlainLayers, has_plain_layers
from groupwise.rollout.slot_decode import Answers, SlotDecoder
from groupwise.types import Completion, Group, Prompt, Sampling


class Model(Protocol):
    """What the engine needs of a policy."""

    model: Any
    eos_ids: frozenset[int]
    pad_id: int
    context: int | None
    window: int | None
    vocab_size: int
    packs: bool
    compiles: bool

    @property
    def device(self) -> torch.device: ...
    def hidden_states(self, input_ids: Tensor, position_ids: Tensor, *, attend: Any = None) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...
    def decode(self, token_ids: tuple[int, ...] | list[int]) -> str: ...
    def load_weights(self, weights: dict[str, Tensor]) -> None: ...


class EmbeddedEngine:
    """Answers `n` times per prompt: the prompt computed once, rows refilled as answers end.

        engine = EmbeddedEngine(policy, max_num_seqs=512)
        groups = engine.generate(prompts, n=16, sampling=Sampling(max_tokens=16, seed=0, step=3))

    What an answer says depends on the weights, the prompt, `sampling` and its place, and not on `max_num_seqs` or on
    what is sampled beside it, except where two tokens are so close that float rounding decides between them.
    """

    def __init__(self, policy: Model, max_num_seqs: int, memory_share: float = 0.4) -> None:
        if max_num_seqs < 1:
            raise BadValueError(f"rollout.max_num_seqs={max_num_seqs}: at least one answer must fit")
        self.policy = policy
        self.max_num_seqs = max_num_seqs
        self._slot_decoder: SlotDecoder | None = None
        self._is_plain = has_plain_layers(policy)
        if policy.packs and policy.device.type == "cuda":
            total = torch.cuda.get_device_properties(policy.device).total_memory
            self._slot_decoder = SlotDecoder(policy, max_num_seqs, int(memory_share * total))

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling) -> list[Group]:
        """One group of `n` answers per prompt, in the order of `prompts`."""
        if not prompts:
            return []
        self._check(prompts, n, sampling)
        was_training = self.policy.model.training
        self.policy.model.eval()
        try:
            with torch.no_grad():
                found = self._run([prompt.token_ids for prompt in prompts], n, sampling)
                answers = [self._completion(*answer) for answer in found]
        finally:
            self.policy.model.train(was_training)
        return [
            Group(prompt=prompt, completions=tuple(answers[place * n : (place + 1) * n]))
            for place, prompt in enumerate(prompts)
        ]

    def _run(self, prompts: list[tuple[int, ...]], n: int, sampling: Sampling) -> Answers:
        if reason := self._why_slow(max(map(len, prompts)) + sampling.max_tokens):
            name = type(self.policy.model).__name__
            warnings.warn(f"{name} is sampled by its own generate, which is slow: {reason}", GroupwiseWarning, 3)
            return decode_by_generate(self.policy, prompts, n, sampling, self.max_num_seqs)
        if self._slot_decoder is not None:
            return self._slot_decoder.run(prompts, n, sampling)
        layers = PlainLayers(self.policy.model.base_model) if self._is_plain else None
        return Decoder(self.policy, prompts, n, sampling, self.max_num_seqs, layers).run()

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Write weights into the policy, where they come from elsewhere; the policy's own are read in place."""
        self.policy.load_weights(dict(weights))

    def _check(self, prompts: Sequence[Prompt], n: int, sampling: Sampling) -> None:
        if n < 1 or sampling.max_tokens < 1:
            raise BadValueError(f"n={n}, max_tokens={sampling.max_tokens}: both must be at least 1")
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
            raise BadValueError(
                f"temperature={sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k}: "
                "temperature is 0 (greedy) or more, top_p above 0 and up to 1, top_k 0 (all) or more"
            )
        longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
        total, context = len(longest.token_ids) + sampling.max_tokens, self.policy.context
        if context is not None and total > context:
            raise BadValueError(
                f"prompt {longest.uid!r} has {len(longest.token_ids)} tokens; with {sampling.max_tokens} of answer "
                f"that is more than the model's context of {context}; lower data.max_response_length"
            )

    def _why_slow(self, total: int) -> str:
        """Why sequences of so many tokens cannot be decoded here; nothing where they can."""
        window = self.policy.window
        if not self.policy.packs:
            return "its layers do not take their attention from the caller"
        if window is not None and total > window:
            return f"its layers see {window} tokens back, and an answer with its prompt may be longer"
        return ""

    def _completion(self, token_ids: tuple[int, ...], log_probs: tuple[float, ...]) -> Completion:
        reason = "stop" if token_ids[-1] in self.policy.eos_ids else "length"
        return Completion(token_ids, log_probs, reason, text=self.policy.decode(token_ids))
