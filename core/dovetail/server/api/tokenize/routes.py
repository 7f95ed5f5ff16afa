"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse, Response

from dovetail.errors import RequestError
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.server.api.tokenize.protocol import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
)
from dovetail.server.api.tokenize.tokenizer_info import tokenizer_info
from dovetail.server.generate.as_chat import CHAT_NAMES, in_words_of
from dovetail.server.generate.dependencies import ServerOf
from dovetail.server.generate.ignored_fields import json_reply
from dovetail.server.generate.server_state import LONG_WORK, ServerState
from dovetail.server.generate.template.chat import RenderQuery


async def tokenize(body: TokenizeRequest, server: ServerOf) -> Any:
    """Return the token ids of a text or of rendered messages."""
    server.model_name(body.model)
    ignored = server.fields.check(body, known=("messages.",), is_answered=False)
    text, adds_special, unused = await _text(server, body)
    with in_words_of(CHAT_NAMES if body.messages else {}):
        token_ids = await server.tokenize(text, add_special_tokens=adds_special)
    strings = server.engine.tokenizer.tokens(token_ids) if body.return_token_strs else None
    reply = TokenizeReply(
        count=len(token_ids),
        max_model_len=server.engine.spec.run.max_model_tokens,
        tokens=token_ids,
        token_strs=strings,
    )
    return json_reply(reply, [*ignored, *server.fields.report(unused)])


async def _text(server: ServerState, body: TokenizeRequest) -> tuple[str, bool, tuple[str, ...]]:
    """Return (text, whether special tokens are added, names that had no effect)."""
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages.", where="prompt")
    if body.messages is None:
        adds = True if body.add_special_tokens is None else body.add_special_tokens
        return body.prompt or "", adds, ()
    server.check_template(body.chat_template)
    defaults = server.frontend.default_chat_template_kwargs
    query = RenderQuery(
        messages=body.messages,
        tools=body.tools or (),
        kwargs={**defaults, **(body.chat_template_kwargs or {})},
        adds_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continues_final_message=body.continue_final_message,
        template=body.chat_template,
    )
    rendered = await server.run(lambda: server.renderer.render(query), LONG_WORK)
    own = {f"chat_template_kwargs.{name}" for name in defaults} - {
        f"chat_template_kwargs.{name}" for name in body.chat_template_kwargs or {}
    }
    unused = tuple(name for name in rendered.ignored if name not in own)
    return rendered.prompt, bool(body.add_special_tokens), unused


async def get_tokenizer_info(server: ServerOf) -> Response:
    """Return the tokenizer's class, settings, special tokens and chat template."""
    server.check_text("tokenizer")
    folder = server.engine.spec.tokenizer_path
    tokenizer, templates = server.engine.tokenizer, server.renderer.templates
    info = await server.run(lambda: tokenizer_info(folder, tokenizer, templates), LONG_WORK)
    return JSONResponse(info)


async def detokenize(body: DetokenizeRequest, server: ServerOf) -> Any:
    """Return the text of token ids."""
    server.model_name(body.model)
    ignored = server.fields.check(body, is_answered=False)
    size = server.engine.spec.run.model.vocab_size
    if body.tokens and max(body.tokens) >= size:
        raise RequestError(f"valid token ids are 0 to {size - 1}.", where="tokens")
    tokenizer = server.engine.tokenizer
    text = await server.run(
        lambda: tokenizer.decode(body.tokens, skip_special_tokens=False), len(body.tokens)
    )
    return json_reply(DetokenizeReply(prompt=text), ignored)


class TokenizeApi(Api):
    """Text to token ids and back."""

    info = Info(
        summary="converts text to token ids and back", source="the HTTP API of `vllm serve`"
    )
    routes = (
        Route(method="POST", path="/tokenize", endpoint=tokenize, body=TokenizeRequest),
        Route(method="POST", path="/detokenize", endpoint=detokenize, body=DetokenizeRequest),
        *(
            Route(
                method="GET",
                path=path,
                endpoint=get_tokenizer_info,
                flag="enable_tokenizer_info_endpoint",
            )
            for path in ("/tokenizer_info", "/get_tokenizer_info")
        ),
    )
