"""Shorthands for the rows of the tables."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.data.request_field import Reading, RequestField, RequestFields, Sent

ANYONE = "several"
LLAMA = "llama.cpp"
SGLANG = "SGLang"
VLLM = "vLLM"
TGI = "TGI"
OPENAI = "OpenAI"
OPENROUTER = "OpenRouter"
MISTRAL = "Mistral"
ANTHROPIC = "Anthropic"
OLLAMA = "Ollama"
WEBUI = "text-generation-webui"
KOBOLD = "KoboldCpp"


def renamed(whose: str, *ours: str, what: str = "", **more: Any) -> RequestField:
    """Return the row of a field that has another name here: the first one that an API has."""

    def read(value: Any, sent: Sent) -> list[tuple[str, str, Any]]:
        return [(next(filter(sent.has, ours), ours[0]), "", value)]

    what = what or f"`{ours[0]}`"
    return RequestField(how="mapped", what=what, whose=whose, read=read, **more)


def read_by(reading: Reading, whose: str, what: str, **more: Any) -> RequestField:
    """Return the row of a field that a function translates."""
    return RequestField(how="mapped", what=what, whose=whose, read=reading, **more)


def honoured(whose: str, what: str, *names: str) -> RequestFields:
    """Return rows of fields that are declared under their names."""
    return dict.fromkeys(names, RequestField(how="honoured", what=what, whose=whose))


def claimed(whose: str, *names: str, **more: Any) -> RequestFields:
    """Return rows of fields that samplers claim."""
    what = "a sampler; refused where none is loaded"
    return dict.fromkeys(names, RequestField(how="claimed", what=what, whose=whose, **more))


def ignored(whose: str, what: str, *names: str) -> RequestFields:
    """Return rows of fields that change no answer."""
    return dict.fromkeys(names, RequestField(how="ignored", what=what, whose=whose))


def refused(whose: str, what: str, *names: str, **more: Any) -> RequestFields:
    """Return rows of fields that cannot be had; `what` says what to do instead."""
    return dict.fromkeys(names, RequestField(how="refused", what=what, whose=whose, **more))


def absent(whose: str, feature: str, *names: str, **more: Any) -> RequestFields:
    """Return rows of fields that belong to a feature of `dovetail.unsupported`."""
    from dovetail.unsupported import what

    return refused(whose, what(feature), *names, feature=feature, **more)
