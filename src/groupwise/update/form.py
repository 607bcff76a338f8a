"""How a batch's answers are laid out for a policy: with their prompt shared where its layers allow it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from groupwise.errors import GroupwiseWarning
from groupwise.update.flex import FlexGroups, padded_length
from groupwise.update.kernels import has_triton
from groupwise.update.long_stretches import has_cudnn_attention
from groupwise.update.pack import OWN_ROWS, SHARED_ROWS, Answer, Form
from groupwise.update.split import WIDEST_HEAD, SplitGroups


def choose_form(policy: Any, answers: Sequence[Answer]) -> Form:
    """The GPU's own attention kernels where they know the precision, else flex attention; a mask under SDPA on a CPU;
    rows of their own for a model that cannot share."""
    if reason := _why_not_shared(policy, answers):
        name = type(policy.model).__name__
        warnings.warn(f"{name} computes the prompt once per answer: {reason}", GroupwiseWarning, stacklevel=2)
        return OWN_ROWS
    if policy.device.type != "cuda":
        return Form(SHARED_ROWS.build, evened_length) if policy.wants_few_lengths else SHARED_ROWS
    options = {"compiles": policy.compiles, "checkpoints": policy.checkpoints}
    if policy.dtype == torch.bfloat16 and _has_flash_kernels(policy):
        has_cudnn = has_cudnn_attention(policy.device, policy.heads[1])
        return Form(partial(SplitGroups.build, **options, has_cudnn=has_cudnn), padded_length)
    if policy.dtype == torch.float32 and has_triton():
        return Form(partial(FlexGroups.build, **options), padded_length)
    return SHARED_ROWS


def evened_length(num_tokens: int) -> int:
    """Rounded up by a sixteenth or less, so that batches of about one size have one length."""
    grain = max(1, (1 << max(0, num_tokens.bit_length() - 1)) // 16)
    return -(-num_tokens // grain) * grain


def _why_not_shared(policy: Any, answers: Sequence[Answer]) -> str:
    if not policy.packs:
        return "its layers do not take their attention from the caller"
    if policy.window is not None and max((a.width for a in answers), default=0) > policy.window:
        return f"its layers see {policy.window} tokens back, and an answer with its prompt is longer"
    return ""


def _has_flash_kernels(policy: Any) -> bool:
    """Whether torch brings attention over stretches for this card, and for heads as wide as the model's."""
    is_recent: bool = torch.cuda.get_device_capability(policy.device) >= (8, 0)
    return is_recent and torch.backends.cuda.is_flash_attention_available() and policy.heads[1] <= WIDEST_HEAD
