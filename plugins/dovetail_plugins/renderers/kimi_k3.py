"""Conversations of Kimi K3, whose checkpoint has code for them and no chat template.

Source: the format that the checkpoint's encoding_k3.py defines and its tokenizer renders by
default. A message is an element of the family's own markup, and so are an answer's thoughts, its
text, its calls and their arguments, each with its type. What the system says of the tools, of the
effort, of the choice of tools and of the answer's format is in messages of its own. Thoughts of
earlier answers stay. With thinking off, there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

from dovetail.errors import RequestError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.renderer import Reads, RendererInput
from dovetail_plugins.renderers._by_code import (
    EFFORT,
    SWITCHES,
    CodeRenderer,
    level_of,
    no_role,
    thinks,
)
from dovetail_plugins.renderers._earlier_turns import canonical, spelled
from dovetail_plugins.tool_parsers._kimi_k3 import CLOSE, MESSAGE_END, OPEN, SEP

OWN_EFFORT = "thinking_effort"
CHOICE, FORMAT, SCHEMA = "tool_choice", "response_format", "response_schema"
WORDS = frozenset({OPEN, SEP, CLOSE, MESSAGE_END})
READS = Reads(
    fields=frozenset({"tool", "tools"}),
    variables=frozenset({*SWITCHES, EFFORT, OWN_EFFORT, CHOICE, FORMAT, SCHEMA}),
    writes=WORDS,
    structure=WORDS,
)

EFFORTS = {name: name for name in ("low", "high", "max")}
"""The text that names the effort says "medium", too, and the checkpoint's code refuses it."""

DEFAULT_EFFORT = "max"

TOOLS = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
"""What the model was trained to read before its tools, word for word. The texts below, too."""

MORE_TOOLS = (
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n"
)
THINKING = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={effort}`."
)
CHOICES = {
    "auto": "",
    "required": "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.",
    "none": "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.",
}
JSON_ONLY = (
    "The system is invoked with `response_format={name}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting."
)
BY_SCHEMA = "\nThe JSON data must match the following schema:\n"

TYPES = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}


class KimiK3(CodeRenderer):
    """Renders as the checkpoint's own code does."""

    info = Info(
        summary="conversations of Kimi K3, which has no chat template",
        source="https://huggingface.co/moonshotai/Kimi-K3",
    )
    model_types: ClassVar[tuple[str, ...]] = ("kimi_k3",)
    code: ClassVar[tuple[str, ...]] = ("encoding_k3.py",)

    def reads(self, *, has_tools: bool) -> Reads:
        """Return what the format has a place for."""
        return READS

    def render(self, given: RendererInput) -> str:
        """Return the prompt. Raises: RequestError for results of no tool and for variables that
        mean nothing"""
        is_thinking = thinks(given.variables, by_default=True)
        parts = [_system("tool-declare", TOOLS + _json(given.tools))] if given.tools else []
        if is_thinking:
            parts.append(_system("thinking-effort", THINKING.format(effort=_effort(given))))
        parts += _messages(given.messages, is_thinking=is_thinking)
        parts += _requests(given.variables)
        if given.adds_generation_prompt:
            channel = "think" if is_thinking else "response"
            parts += [_open("message", role="assistant"), _open(channel)]
        return "".join(parts)


def _effort(given: RendererInput) -> str:
    variables = given.variables
    effort = variables.get(OWN_EFFORT)
    effort = variables.get(EFFORT) if effort is None else effort
    return level_of(DEFAULT_EFFORT if effort is None else effort, EFFORTS)


def _messages(messages: Iterable[dict[str, Any]], *, is_thinking: bool) -> Iterator[str]:
    """Yield the messages. Raises: RequestError"""
    calls: Sequence[Mapping[str, Any]] = ()
    index = 0
    for at, turn in enumerate(_in_order(messages)):
        match turn["role"]:
            case "assistant":
                calls, index = turn.get("tool_calls", ()), 0
                yield _message(_answer(turn, is_thinking=is_thinking), **_who(turn))
            case "tool":
                index += 1
                name = _tool(turn, calls[index - 1 : index], at)
                yield _message(turn["content"], role="tool", tool=name, index=index)
            case "system" if turn.get("tools"):
                yield _system("tool-declare", MORE_TOOLS + _json(turn["tools"]))
            case "system" | "user":
                yield _message(turn["content"], **_who(turn))
            case role:
                raise no_role(role, at)


def _requests(variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the system says last: the choice of tools, the answer's format. Raises:
    RequestError"""
    choice = variables.get(CHOICE, "auto")
    if not isinstance(choice, str) or choice not in CHOICES:
        raise _meaningless(CHOICE, ", ".join(CHOICES))
    if CHOICES[choice]:
        yield _system("tool-choice", CHOICES[choice])
    given = variables.get(FORMAT)
    name = given.get("type") if isinstance(given, Mapping) else given
    if name in (None, "text"):
        return
    if name not in ("json_object", "json_schema"):
        raise _meaningless(FORMAT, "text, json_object, json_schema")
    text = JSON_ONLY.format(name=name)
    if name == "json_schema":
        text += BY_SCHEMA + _json(_schema(variables))
    yield _system("response-format", text)


def _schema(variables: Mapping[str, Any]) -> Any:
    """Return the schema of an answer, OpenAI's form around it or not."""
    if SCHEMA in variables:
        return variables[SCHEMA]
    given = variables[FORMAT]
    named = given.get("json_schema") if isinstance(given, Mapping) else None
    return named.get("schema", named) if isinstance(named, Mapping) else named


def _meaningless(name: str, values: str) -> RequestError:
    return RequestError(
        "means nothing to this model.",
        where=f"chat_template_kwargs.{name}",
        fix=f"use one of {values}.",
        code="renderer_error",
    )


def _in_order(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the messages, results that follow each other in the order of the calls before them."""
    calls: Sequence[Mapping[str, Any]] = ()
    for is_result, group in groupby(messages, key=lambda turn: turn["role"] == "tool"):
        turns = list(group)
        if is_result:
            yield from _sorted(turns, calls)
            continue
        yield from turns
        answers = (turn for turn in reversed(turns) if turn["role"] == "assistant")
        calls = next(answers, {"tool_calls": calls}).get("tool_calls", ())


def _sorted(
    results: list[dict[str, Any]], calls: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return results in the order of their calls, with the calls' names; as they are if one has no
    call."""
    called = {calls[at].get("id"): at for at in reversed(range(len(calls)))}
    called.pop(None, None)
    places = [called.get(result.get("tool_call_id"), -1) for result in results]
    if -1 in places:
        return results
    order = sorted(range(len(results)), key=places.__getitem__)
    return [results[at] | {"tool": calls[places[at]]["function"]["name"]} for at in order]


def _tool(result: Mapping[str, Any], call: Sequence[Mapping[str, Any]], at: int) -> str:
    """Return the name of a result's tool; `call` is the one in its place. Raises: RequestError"""
    name = result.get("tool", result.get("name"))
    if name is None and not call:
        raise RequestError(
            "a tool's result needs a call before it, or the tool's name.",
            where=f"messages[{at}]",
            fix="send the assistant's message with its tool_calls, too.",
            code="renderer_error",
        )
    return str(call[0]["function"]["name"] if name is None else name)


def _answer(turn: Mapping[str, Any], *, is_thinking: bool) -> str:
    """Return the sections of an answer, in their order."""
    thoughts = turn.get("reasoning_content", "")
    calls = "".join(_call(call, at) for at, call in enumerate(turn.get("tool_calls", ()), 1))
    return (
        (_element("think", thoughts if thoughts.strip() else "") if is_thinking else "")
        + _element("response", turn["content"])
        + (_element("tools", calls) if calls else "")
    )


def _call(call: Mapping[str, Any], index: int) -> str:
    function = call["function"]
    given = function["arguments"]
    arguments = "".join(
        _element(
            "argument",
            given[name] if isinstance(given[name], str) else text,
            key=name,
            type=_type(given[name]),
        )
        for name, text in spelled(given).items()
    )
    return _element("call", arguments, tool=function["name"], index=index)


def _type(value: Any) -> str:
    """Return the type of an argument."""
    if value is None:
        return "null"
    return "object" if isinstance(value, dict) else TYPES[type(value)]


def _who(turn: Mapping[str, Any]) -> dict[str, str]:
    """Return the role of a message, and its writer's name if it has one."""
    named = {"name": turn["name"]} if turn.get("name") else {}
    return {"role": turn["role"], **named}


def _system(kind: str, text: str) -> str:
    """Return a message of the system's own."""
    return _message(text, role="system", type=kind)


def _message(body: str, /, **attributes: Any) -> str:
    return _element("message", body, **attributes) + MESSAGE_END


def _element(tag: str, body: str, /, **attributes: Any) -> str:
    return f"{_open(tag, **attributes)}{body}{CLOSE}{tag}{SEP}"


def _open(tag: str, /, **attributes: Any) -> str:
    pairs = (f' {key}="{_escaped(str(value))}"' for key, value in attributes.items())
    return f"{OPEN}{tag}{''.join(pairs)}{SEP}"


def _escaped(value: str) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


def _json(value: Any) -> str:
    """Return a block of JSON, its names sorted."""
    return f"```json\n{canonical(value)}\n```"
