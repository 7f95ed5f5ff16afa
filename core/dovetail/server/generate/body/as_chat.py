"""Conversion of other dialects' bodies to a ChatRequest, and errors in the client's field names.

Independent of the dialects: each passes a mapping of its fields to chat's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from dovetail.engine.context_length import PROMPT
from dovetail.errors import RequestError
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.body.fields import SamplingFields
from dovetail.server.http.validation import fault_of

MAX_DEPTH = 200
"""Echoed values are nested inside a response, and pydantic serializes at most 255 levels."""


def engine_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return a dialect's names of chat's fields, and its name for the prompt.

    The engine checks prompts for length and Unicode, regardless of the fields they came from.
    """
    return {PROMPT: names.get("messages", "messages"), **names}


CHAT_NAMES = engine_names({})


def as_chat(body: SamplingFields, fields: Mapping[str, Any]) -> ChatRequest:
    """Return a chat request with these fields, and the body's sampling fields and those that a
    plugin may have claimed. Raises: RequestError"""
    shared = {
        name: getattr(body, name)
        for name in SamplingFields.model_fields
        if name in body.model_fields_set
    }
    others = (body.model_extra or {}).items()
    shared |= {name: value for name, value in others if name not in ChatRequest.model_fields}
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        chat = ChatRequest.model_validate(shared | given)
        chat._sent_as = sent_as(body)
        return chat
    except ValidationError as error:
        fault = fault_of(RequestValidationError(error.errors(), body=shared | given))
        assert fault is not None, "an error of validation has a fault"
        raise RequestError(f"{fault.what}.", where=fault.param, code=fault.code) from error


def sent_as(body: SamplingFields) -> dict[str, str]:
    """Return translated fields -> the fields as sent, for errors."""
    return body._sent_as


def check_one(body: SamplingFields) -> None:
    """Raise RequestError if several answers are requested in a dialect that supports one."""
    if (body.n or 1) > 1:
        raise RequestError(
            "only one answer per request is supported.", where="n", code="unsupported_field"
        )


Content = str | list[Any]
"""The content of a chat message."""


def joined(parts: Sequence[str | Mapping[str, Any]]) -> Content:
    """Return message content from texts and chat parts: a single text if there are only texts."""
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else list(parts)


def is_deep(value: Any) -> bool:
    """Return whether lists and objects are nested too deep to be echoed in an answer."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        if not inner:
            return False
        level = inner
    return True


@contextlib.contextmanager
def in_words_of(names: Mapping[str, str]) -> Iterator[None]:
    """Report request errors with the client's field names. `names` maps inner names to the
    dialect's; the longest match wins. Raises: what the block raises"""
    try:
        yield
    except RequestError as error:
        error.where = _renamed(error.where, names)
        raise


def _renamed(where: str | None, names: Mapping[str, str]) -> str | None:
    for name in sorted(names, key=len, reverse=True):
        if where is not None and re.match(rf"{re.escape(name)}(?![\w])", where):
            return names[name] + where[len(name) :]
    return where
