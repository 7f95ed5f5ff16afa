"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import JSONResponse, Response

from dovetail.engine.client.requests.prompt_checks import verify_text
from dovetail.engine.client.text.long_text import LONG_TEXT_CHARS
from dovetail.engine.context_length import PROMPT
from dovetail.errors import RequestError
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import (
    CHAT_NAMES,
    HEADER,
    LONG_WORK,
    App,
    ChatRequest,
    ModelText,
    RenderedPrompt,
    ServerOf,
    cancel_on_disconnect,
    header_value,
    in_words_of,
    json_reply,
)
from dovetail_plugins.apis.tokenize.content import content_reply
from dovetail_plugins.apis.tokenize.protocol import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
)
from dovetail_plugins.apis.tokenize.tokenizer_info import tokenizer_info


async def tokenize(body: TokenizeRequest, request: Request, server: ServerOf) -> Any:
    """Return the token ids of a text or of rendered messages."""
    return await cancel_on_disconnect(request, _tokenize(server, body))


async def _tokenize(server: App, body: TokenizeRequest) -> Response:
    text, _ = await server.text_for(body.model)
    ignored = server.fields.check(body, known=("messages.",), is_answered=False)
    if body.content is not None:
        return await content_reply(text, body, ignored)
    rendered = await _rendered(text, body)
    ignored += server.fields.report(rendered.unused)
    with in_words_of(CHAT_NAMES if body.messages else {}):
        if len(rendered.text) > LONG_TEXT_CHARS and server.engine.text_process is not None:
            return await _long_reply(text, body, rendered, ignored)
        token_ids = await text.tokenize(
            rendered.text,
            add_special_tokens=_adds_special(body),
            plain=rendered.plain,
            takes_any_length=True,
        )
    strings = text.vocabulary.tokenizer.names(token_ids) if body.return_token_strs else None
    reply = TokenizeReply(
        count=len(token_ids),
        max_model_len=server.engine.spec.run.max_model_tokens,
        tokens=list(token_ids),
        token_strs=strings,
    )
    return json_reply(reply, ignored)


async def _long_reply(
    text: ModelText, body: TokenizeRequest, rendered: RenderedPrompt, ignored: list[str]
) -> Response:
    """Return the reply for a long text, encoded by the process that tokenizes it."""
    process = text.engine.text_process
    assert process is not None
    verify_text(PROMPT, rendered.text)
    described = await process.describe(
        rendered.text,
        add_special_tokens=_adds_special(body),
        shows_texts=body.return_token_strs,
        plain=rendered.plain,
        folder=text.vocabulary.tokenizer_path,
    )
    limit = text.engine.spec.run.max_model_tokens
    head = f'{{"count":{described.num_tokens},"max_model_len":{limit},"tokens":'
    strings = b',"token_strs":' + (described.texts or b"null")
    return Response(
        head.encode() + described.ids + strings + b"}",
        media_type="application/json",
        headers={HEADER: header_value(ignored)} if ignored else {},
    )


def _adds_special(body: TokenizeRequest) -> bool:
    """Return whether special tokens are added; a chat template writes them itself."""
    given = body.add_special_tokens
    return bool(given) if body.messages is not None else given is None or given


async def _rendered(text: ModelText, body: TokenizeRequest) -> RenderedPrompt:
    """Return the text to tokenize, with the names of fields without effect."""
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages.", where="prompt")
    if body.messages is None:
        return RenderedPrompt(text=body.prompt or "", tail="")
    fields = ChatRequest.model_fields.keys() & body.model_fields_set
    return await text.render(
        ChatRequest.model_construct(**{name: getattr(body, name) for name in fields})
    )


async def get_tokenizer_info(server: ServerOf) -> Response:
    """Return the tokenizer's class, settings, special tokens and chat template."""
    server.text.check_text("tokenizer")
    folder = server.engine.spec.tokenizer_path
    tokenizer, templates = server.engine.tokenizer, server.text.renderer.templates
    info = await server.run(lambda: tokenizer_info(folder, tokenizer, templates), LONG_WORK)
    return JSONResponse(info)


async def detokenize(body: DetokenizeRequest, server: ServerOf) -> Any:
    """Return the text of token ids."""
    text, _ = await server.text_for(body.model)
    ignored = server.fields.check(body, is_answered=False)
    size = text.vocabulary.num_tokens
    if body.tokens and max(body.tokens) >= size:
        raise RequestError(f"valid token ids are 0 to {size - 1}.", where="tokens")
    tokenizer = text.vocabulary.tokenizer
    prompt = await server.run(
        lambda: tokenizer.decode(body.tokens, skip_special_tokens=False), len(body.tokens)
    )
    return json_reply(DetokenizeReply(prompt=prompt, content=prompt), ignored)


class TokenizeApi(Api):
    """Text to token ids and back."""

    info = Info(
        summary="converts text to token ids and back",
        source="the HTTP API of `vllm serve`, and the API page of llama.cpp's server",
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
