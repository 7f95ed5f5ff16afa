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


class TokensPrompt(TypedDict):
    """Token ids, with media if there are any."""

    prompt_token_ids: Sequence[int]
    multi_modal_data: NotRequired[dict[str, Any]]
    multi_modal_uuids: NotRequired[dict[str, Any]]
    mm_processor_kwargs: NotRequired[dict[str, Any]]
