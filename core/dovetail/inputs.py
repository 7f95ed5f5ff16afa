"""Types of prompts that are mappings, with vLLM's names."""

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
    """The encoder's input, and the text or tokens that the decoder begins with."""

    encoder_prompt: str | TextPrompt | TokensPrompt
    decoder_prompt: str | TextPrompt | TokensPrompt | None


PromptType = str | Sequence[int] | TextPrompt | TokensPrompt | ExplicitEncoderDecoderPrompt
"""What `LLM.generate` takes as one prompt."""
