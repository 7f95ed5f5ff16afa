"""Attention layers: their use of the KV cache, rotary positions, and other kinds of attention."""

from dovetail.layers.attention.paged import Attention, attention_layers

__all__ = ["Attention", "attention_layers"]
