"""The shapes of prompts as mappings, under the names by which users of vLLM import them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A text, with media if there are any."""

    prompt: str
    multi_modal_data: NotRequired[dict[str, Any]]
    multi_modal_uuids: NotRequired[dict[str, Any]]
    mm_processor_kwargs: NotRequired[dict[str, Any]]
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """Token ids, with media if there are any."""

    prompt_token_ids: Sequence[int]
    multi_modal_data: NotRequired[dict[str, Any]]
    multi_modal_uuids: NotRequired[dict[str, Any]]
    mm_processor_kwargs: NotRequired[dict[str, Any]]
    cache_salt: NotRequired[str]


class ExplicitEncoderDecoderPrompt(TypedDict):
    """What an encoder reads, and what the decoder begins with."""

    encoder_prompt: str | TextPrompt | TokensPrompt
    decoder_prompt: str | TextPrompt | TokensPrompt | None


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt | ExplicitEncoderDecoderPrompt
"""What `LLM.generate` takes as one prompt."""
