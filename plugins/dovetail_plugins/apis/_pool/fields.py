"""Fields shared by the bodies of pooling requests: inputs, their truncation, usage.

Source: the OpenAI API reference, embeddings, and the extra fields of `vllm serve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, cast

from pydantic import Field, model_validator

from dovetail.engine.client.requests.input_processor import Prompt
from dovetail.server.endpoint import (
    INT31,
    MAX_REQUEST_ID_CHARS,
    Body,
    Reply,
    TranslatedBody,
)
from dovetail_plugins.usage import PromptTokensDetails

Side = Literal["left", "right"]
TokenId = Annotated[int, Field(ge=0, le=INT31, strict=True)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
TokenIdLists = Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]


class InputPart(Body):
    """A text or an image (a URL or base64), in the form of Jina's API."""

    text: str | None = None
    image: str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> InputPart:
        if (self.text is None) == (self.image is None):
            raise ValueError("give a text or an image")
        return self


Mixed = Annotated[list[str | TokenIds | InputPart], Field(min_length=1, fail_fast=True)]
Inputs = str | Texts | TokenIds | TokenIdLists | InputPart | Mixed
"""One text, the token ids of one, a part, or a list of these."""


class PoolFields(TranslatedBody):
    """The fields of every request for a prompt's vector, classes or score."""

    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT31)] | None = None
    truncation_side: Side | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), le=INT31)] = 0
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None
    request_id: (
        Annotated[str, Field(max_length=MAX_REQUEST_ID_CHARS, pattern=r"^[\w.:-]+$")] | None
    ) = None


class PromptUsage(Reply):
    """The prompts' tokens; nothing is generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None


def listed(inputs: Inputs) -> tuple[Sequence[Prompt | InputPart], bool]:
    """Return (the inputs as a list, each a text, token ids or a part, whether a list was given)."""
    match inputs:
        case str() | [int(), *_] | InputPart():
            return [cast("Prompt | InputPart", inputs)], False
        case _:
            return cast("list[Prompt | InputPart]", inputs), True
