"""Bodies of /tokenize and /detokenize.

Source: the HTTP API of `vllm serve`; the API page of llama.cpp's server (`content`).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from dovetail.server.endpoint import (
    MAX_MESSAGES,
    MAX_TEMPLATE_CHARS,
    MAX_TOOLS,
    Body,
    Message,
    Reply,
    TokenId,
    ToolBody,
)

MAX_TOKENS = 1 << 20


class TokenizeRequest(Body):
    """A request to tokenize text, or messages to be rendered. A text in `content` is answered in
    llama.cpp's format."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE_CHARS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None


class TokenizeReply(Reply):
    """The token ids, and the model's length limit."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Body):
    """A request to convert token ids to text."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]


class DetokenizeReply(Reply):
    """The text, in vLLM's field and in llama.cpp's."""

    prompt: str
    content: str
