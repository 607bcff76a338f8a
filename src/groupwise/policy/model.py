"""`Policy`: a transformers model and its tokenizer behind the few calls that the other stages need."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from groupwise.errors import BadValueError
from groupwise.policy.attention import Attend
from groupwise.policy.compiled import num_compiled
from groupwise.policy.log_probs import CHUNK_ELEMENTS, TokenStatistics, token_statistics
from groupwise.policy.probe import heads_of
from groupwise.policy.siblings import join_siblings
from groupwise.types import Task


class Policy:
    """A causal language model with dropout off, its tokenizer, and what ends an answer.

        policy.encode(task)                                   # prompt -> token ids
        hidden = policy.hidden_states(ids, positions)         # [rows, tokens, width]
        policy.token_statistics(hidden[0, :-1], ids[0, 1:])   # log-probs of the tokens that came next

    context: the most tokens of prompt and answer together, None where the model names no bound. packs: the layers
    take an `attend`, so that answers can share the keys and values of their prompt; found out by trying. window: how
    far back the layers with the shortest view look, None where all see everything; `attend` knows nothing of it.
    compiles, checkpoints: an `attend` may ask for compiled layers, and for layers computed again in the backward pass.
    wants_few_lengths: rows of a length it has seen are computed faster than others.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        packs: bool,
        *,
        compiles: bool = False,
        checkpoints: bool = False,
        wants_few_lengths: bool = False,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.packs, self.compiles, self.checkpoints = packs, compiles, checkpoints
        self.wants_few_lengths = wants_few_lengths
        self.eos_ids = _eos_ids(model, tokenizer)
        config = model.config.get_text_config()
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        self.window = _window(config)
        pad = tokenizer.pad_token_id
        self.pad_id: int = pad if pad is not None else min(self.eos_ids)

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @property
    def heads(self) -> tuple[int, int]:
        """How many heads of keys a layer has, and how wide they are; of a model that packs."""
        return heads_of(self.model.config.get_text_config())

    @property
    def num_compiled(self) -> int:
        """Forms of the layers compiled so far, in this process; of a policy that compiles."""
        return num_compiled()

    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Names and parameters, tied ones once."""
        return list(self.model.named_parameters())

    def encode(self, task: Task) -> tuple[int, ...]:
        """The prompt as the model reads it: text as it stands, messages through the tokenizer's chat template."""
        # verbose: the tokenizer's own word on long texts, which are refused here.
        options: dict[str, Any] = {"return_attention_mask": False, "verbose": False}
        if isinstance(task.prompt, str):
            ids = self.tokenizer(task.prompt, **options)["input_ids"]
        else:
            ids = self.tokenizer(self._chat(task), add_special_tokens=False, **options)["input_ids"]
        if not ids:
            raise BadValueError(f"task {task.key!r} has an empty prompt; the model needs at least one token")
        if self.context is not None and len(ids) >= self.context:
            raise BadValueError(
                f"task {task.key!r} has a prompt of {len(ids)} tokens, and the model's context ends at "
                f"{self.context}; lower data.max_prompt_length or shorten the prompt"
            )
        return tuple(ids)

    def _chat(self, task: Task) -> str:
        """Messages as the text the model was trained on, up to where the assistant's answer begins."""
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            raise BadValueError(
                f"task {task.key!r} is a chat, and this model's tokenizer has no chat template; "
                "give the prompt as text, or use a model trained for chat"
            )
        try:
            text: str = self.tokenizer.apply_chat_template(task.prompt, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError) as error:
            raise BadValueError(
                f"task {task.key!r}: the model's chat template refuses its messages ({error}); "
                "correct their roles and order, or give the prompt as text"
            ) from error
        return text

    def decode(self, token_ids: tuple[int, ...] | list[int]) -> str:
        """The text of an answer, without special tokens."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def hidden_states(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        *,
        attend: Attend | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Last hidden states [rows, tokens, width]; `attend` decides what sees what, else each row is causal."""
        if attend is not None and attention_mask is None:
            # A mask of four dimensions is taken as it stands: the model then builds none, which nobody would look at.
            attention_mask = input_ids.new_zeros(1, 1, 1, 1)
        given = {"position_ids": position_ids, "attention_mask": attention_mask, "attend": attend}
        options = {name: value for name, value in given.items() if value is not None}
        output = self.model.base_model(input_ids=input_ids, use_cache=False, **options)
        states: Tensor = output.last_hidden_state
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits

    def token_statistics(
        self,
        hidden: Tensor,
        tokens: Tensor,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        entropy_gradient: bool = True,
        sum_pi_squared: bool = False,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> TokenStatistics:
        """`groupwise.policy.token_statistics` under this model's head; on a GPU its fused form."""
        weight = self._fusible_head(hidden)
        if weight is not None and not sum_pi_squared:
            from groupwise.policy.fused_head import log_probs_and_entropy

            log_probs, spread = log_probs_and_entropy(
                hidden, weight, tokens, temperature, entropy_gradient=entropy and entropy_gradient
            )
            return TokenStatistics(log_probs, spread if entropy else None)
        return token_statistics(
            self.logits,
            hidden,
            tokens,
            self.vocab_size,
            temperature=temperature,
            entropy=entropy,
            entropy_gradient=entropy_gradient,
            sum_pi_squared=sum_pi_squared,
            chunk_elements=chunk_elements,
        )

    def _fusible_head(self, hidden: Tensor) -> Tensor | None:
        """The output layer's weight where a kernel knows the layer: a plain matrix, on a GPU, with Triton at hand."""
        head: Any = self.model.get_output_embeddings()
        is_plain = type(head) is torch.nn.Linear and head.bias is None
        if not is_plain or not hidden.is_cuda or hidden.dtype == torch.float64 or find_spec("triton") is None:
            return None
        weight: Tensor = head.weight
        return weight

    def frozen_copy(self) -> Policy:
        """The policy as it is now, for a reference: own weights, no gradients."""
        copied = copy.copy(self)
        copied.model = copy.deepcopy(self.model).requires_grad_(False)
        if self.compiles:
            # The copies of joined weights are no longer views of one tensor.
            join_siblings(copied.model)
        return copied

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Write `weights` (every parameter by name) into the model in place."""
        own = dict(self.parameters())
        missing = own.keys() - weights.keys()
        if missing:
            raise BadValueError(f"no weights for {len(missing)} parameters of the model, {min(missing)!r} among them")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(weights[name])


def _window(config: Any) -> int | None:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and set(kinds) <= {"full_attention"}:
        return None
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min((window for window in windows if window is not None), default=None)


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Whatever the generation settings, the config or the tokenizer call the end of a sequence."""
    ids: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config.get_text_config(), tokenizer):
        named = getattr(owner, "eos_token_id", None)
        ids.update([named] if isinstance(named, int) else named or [])
    if not ids:
        raise BadValueError(
            "neither the model's config nor its tokenizer names an end-of-sequence token; "
            "set eos_token_id in config.json"
        )
    return frozenset(ids)
