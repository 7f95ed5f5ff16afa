"""What the bodies of pooled prompts share: inputs, how they are cut, usage.

Source: the OpenAI API reference, embeddings, and the extra fields of `vllm serve`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dovetail.server.generate.bodies import INT31, Body, Reply, TokenId
from dovetail.server.generate.usage import PromptTokensDetails
from dovetail.server.http.middleware import MAX_REQUEST_ID_CHARS

Side = Literal["left", "right"]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
TokenIdLists = Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]
Inputs = str | Texts | TokenIds | TokenIdLists
"""One text, several, the token ids of one, or those of several."""


class PoolFields(Body):
    """What every request for a prompt's vector, classes or score may say."""

    model: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT31)] | None = None
    truncation_side: Side | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), le=INT31)] = 0
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None
    request_id: (
        Annotated[str, Field(max_length=MAX_REQUEST_ID_CHARS, pattern=r"^[\w.:-]+$")] | None
    ) = None


class PromptUsage(Reply):
    """Tokens of the prompts; nothing is generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None


def listed(inputs: Inputs) -> list[str] | list[list[int]]:
    """Return the inputs as a list, all text or all token ids."""
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs[0], int):
        return [inputs]  # type: ignore[list-item]
    return inputs  # type: ignore[return-value]
