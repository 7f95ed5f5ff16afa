"""Tokens per KV cache block: the choices of --block-size. `value` is the number."""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

TOKENS_1 = Value(summary="1 token: finest prefix sharing, longest block tables", value=1)
TOKENS_8 = Value(summary="8 tokens", value=8)
TOKENS_16 = Value(summary="16 tokens", value=16)
TOKENS_32 = Value(summary="32 tokens", value=32)
TOKENS_64 = Value(summary="64 tokens", value=64)
TOKENS_128 = Value(summary="128 tokens: short block tables, more unused slots", value=128)
TOKENS_256 = Value(summary="256 tokens: required by flash-attn 2", value=256)
