"""DSML: the tags in which DeepSeek's models since V3.2 call tools, and their special tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail_plugins.renderers._earlier_turns import spelled

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, THINK_END = "<think>", "</think>"
DSML = "｜DSML｜"
WORDS = frozenset({BEGIN, END, USER, ASSISTANT, THINK, THINK_END, DSML})


def with_tools(messages: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the messages, the tools' text at the end of the first system message, which is added
    if need be."""
    turns = list(messages)
    if not turns or turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": ""})
    return [turns[0] | {"content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]


def schemas(tools: Sequence[dict[str, Any]]) -> str:
    """Return the tools' functions as lines of JSON."""
    return "\n".join(to_json(tool["function"]) for tool in tools)


def section(calls: Sequence[Mapping[str, Any]], name: str, tag: str = DSML) -> str:
    """Return what follows an answer's text: its calls in a section, or nothing. `tag` begins the
    name of every tag."""
    if not calls:
        return ""
    lines = "\n".join(_call(call["function"], tag) for call in calls)
    return f"\n\n<{tag}{name}>\n{lines}\n</{tag}{name}>"


def to_json(value: Any) -> str:
    """Return JSON as these models read it."""
    return json.dumps(value, ensure_ascii=False)


def _call(function: Mapping[str, Any], tag: str) -> str:
    arguments = function["arguments"]
    parameters = "\n".join(
        _parameter(name, arguments[name], text, tag) for name, text in spelled(arguments).items()
    )
    return f'<{tag}invoke name="{function["name"]}">\n{parameters}\n</{tag}invoke>'


def _parameter(name: str, value: Any, text: str, tag: str) -> str:
    is_text = isinstance(value, str)
    shown = value if is_text else text
    return f'<{tag}parameter name="{name}" string="{str(is_text).lower()}">{shown}</{tag}parameter>'
