"""AttentionConfig: the attention backend."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Attention."""

    attention_backend: str = flag(
        "auto", kind="attention_backend", help="implementation of attention over the KV cache"
    )
