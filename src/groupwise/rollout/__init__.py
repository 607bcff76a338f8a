"""Prompts to groups of answers: the embedded engine samples with the weights that are being trained."""

from groupwise.rollout.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
