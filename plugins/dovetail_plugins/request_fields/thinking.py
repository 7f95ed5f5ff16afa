"""Whether, how hard and how long a model thinks, and where its thoughts are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.interfaces.data.request_field import RequestFields, Sent
from dovetail.interfaces.plugin import Value
from dovetail_plugins.request_fields._rows import (
    ANTHROPIC,
    LLAMA,
    OLLAMA,
    OPENAI,
    OPENROUTER,
    SGLANG,
    VLLM,
    honoured,
    ignored,
    read_by,
    renamed,
)

Found = Iterator[tuple[str, str, Any]]
EFFORT = ("reasoning_effort", "reasoning.effort", "output_config.effort", "think")
BUDGET = "thinking_token_budget"
KWARGS = "chat_template_kwargs"


def _switch(value: Any, sent: Sent, where: str = "") -> Found:
    """Read whether to think, into the switch that an API has."""
    if not isinstance(value, bool):
        raise ValueError("should be true or false")
    if sent.has("enable_thinking"):
        yield "enable_thinking", where, value
    elif sent.has("reasoning"):
        yield "reasoning.effort", where, "medium" if value else "none"
    elif sent.has("output_config"):
        yield "thinking.type", where, "enabled" if value else "disabled"
    else:
        yield "think", where, value


def _think(value: Any, sent: Sent) -> Found:
    """Read Ollama's switch, or its words for the effort."""
    if isinstance(value, str):
        yield from _effort(value, sent)
    else:
        yield from _switch(value, sent)


def _effort(value: Any, sent: Sent, where: str = "") -> Found:
    yield next(filter(sent.has, EFFORT), EFFORT[0]), where, value


def _budget(value: Any, sent: Sent, where: str = "") -> Found:
    if sent.has("output_config"):
        yield "thinking.type", where, "enabled"
        yield "thinking.budget_tokens", where, value
    elif sent.has("think") and where:
        yield where, where, value
    else:
        yield BUDGET, where, value


def _reasoning(value: Any, sent: Sent) -> Found:
    """Read OpenRouter's object. An `effort` takes precedence over `enabled`."""
    if not isinstance(value, Mapping):
        raise ValueError("should be an object")
    own = {name: inner for name, inner in value.items() if name not in ("enabled", "max_tokens")}
    if sent.has("reasoning"):
        yield "reasoning", "reasoning", own
    for name, inner in value.items():
        if name in own and sent.has("reasoning"):
            continue
        where = f"reasoning.{name}"
        if inner is None or (name == "enabled" and inner is True and value.get("effort")):
            continue
        if name == "effort":
            yield from _effort(inner, sent, where)
        elif name == "enabled":
            yield from _switch(inner, sent, where)
        elif name == "max_tokens":
            yield from _budget(inner, sent, where)
        elif name == "exclude" and sent.has("include_reasoning"):
            yield "include_reasoning", where, not inner
        else:
            yield where, where, inner


def _thinking(value: Any, sent: Sent) -> Found:
    """Read Anthropic's object, or a switch."""
    if not isinstance(value, Mapping):
        yield from _switch(value, sent)
        return
    if sent.has("output_config"):
        yield "thinking", "thinking", value
        return
    others = dict(value)
    budget = others.pop("budget_tokens", None)
    kind = others.get("type")
    if sent.has("thinking"):
        yield "thinking", "thinking", others
    elif kind in ("enabled", "disabled"):
        yield from _switch(kind == "enabled", sent, "thinking.type")
    elif kind not in ("auto", "adaptive"):
        raise ValueError("should have the type enabled, disabled, auto or adaptive")
    if budget is not None and kind != "disabled":
        yield from _budget(budget, sent, "thinking.budget_tokens")


def _separate(value: Any, sent: Sent) -> Found:
    """Read whether thoughts are separated from the content; false leaves them there."""
    if not isinstance(value, bool):
        raise ValueError("should be true or false")
    yield "reasoning_parser", "", "none"


def _format(value: Any, sent: Sent) -> Found:
    """Read llama.cpp's format of the reasoning: in the content, or apart."""
    if value not in ("none", "auto", "deepseek", "deepseek-legacy"):
        raise ValueError("should be none, auto or deepseek")
    if value == "none":
        yield "reasoning_parser", "", "none"


ROWS: RequestFields = {
    **honoured(VLLM, "the same", KWARGS, "include_reasoning", "reasoning_parser"),
    "reasoning_effort": read_by(_effort, OPENAI, "how hard to think", is_switch=True),
    "reasoning": read_by(_reasoning, OPENROUTER, "in a conversation effort, enabled, max_tokens "
                         "and exclude: `reasoning_effort`, `enable_thinking`, "
                         "`thinking_token_budget`, `include_reasoning`", also=(dict,)),
    "thinking": read_by(_thinking, ANTHROPIC, "type and budget_tokens: `enable_thinking`, "
                        "`thinking_token_budget`", also=(dict, bool), is_switch=True),
    "enable_thinking": read_by(_switch, SGLANG, "whether to think", is_switch=True),
    "think": read_by(_think, OLLAMA, "`enable_thinking`, or a word: `reasoning_effort`",
                     is_switch=True),
    "thinking_budget": read_by(_budget, SGLANG, "`thinking_token_budget`", is_switch=True),
    "reasoning_budget": read_by(_budget, LLAMA, "`thinking_token_budget`", is_switch=True,
                                neutral=(-1,)),
    "thinking_budget_tokens": read_by(_budget, LLAMA, "`thinking_token_budget`", is_switch=True,
                                      neutral=(-1,)),
    BUDGET: read_by(_budget, VLLM, "how many tokens to think for", is_switch=True),
    "chat_template_args": renamed(SGLANG, KWARGS),
    "template_kwargs": renamed(SGLANG, KWARGS),
    "separate_reasoning": read_by(_separate, SGLANG, "false: `reasoning_parser` none, which leaves "
                                  "thoughts in the content", is_switch=True, neutral=(True,)),
    "reasoning_format": read_by(_format, LLAMA, "none: `reasoning_parser` none", is_switch=True),
    **ignored(SGLANG, "thoughts are streamed as they come", "stream_reasoning"),
    **ignored(OPENAI, "a hint to models that were trained for it", "verbosity"),
}  # fmt: skip

THINKING = Value(summary="whether and how a model thinks", value=f"{__name__}:ROWS")
