"""How Ollama renders a conversation with a Go template.

A template with `.Messages` gets all of them; an older one is run once for each exchange, with
`.System`, `.Prompt` and `.Response`. Source: Ollama's template reference and its Modelfile
reference; https://github.com/ollama/ollama/blob/main/template/template.go for what is merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail_plugins.renderers.go_template.nodes import (
    Action,
    Branch,
    Call,
    Chain,
    Dot,
    Literal,
    Node,
    Nodes,
    Pipe,
    Variable,
)
from dovetail_plugins.renderers.go_template.parsing import Parsed, parse
from dovetail_plugins.renderers.go_template.running import run
from dovetail_plugins.renderers.go_template.values import MESSAGE, TOOL, JsonList, Record

RESPONSE = "Response"
BETWEEN = "\n\n"
"""What is written between the texts of successive messages of one role."""
Turn = dict[str, Any]


class GoChat:
    """A parsed template and its rules for conversations; immutable."""

    def __init__(self, source: str) -> None:
        """Raises: GoTemplateError"""
        parsed = parse(source)
        every = [parsed.root, *parsed.defined.values()]
        self.names = frozenset(name for nodes in every for name in names_in(nodes))
        self.constants = frozenset(
            one.value
            for nodes in every
            for one in _operands(nodes)
            if isinstance(one, Literal) and isinstance(one.value, str)
        )
        if not {"Messages", RESPONSE} & self.names:
            answer = Action(Pipe(((Dot((RESPONSE,)),),)), 0)
            parsed = Parsed((*parsed.root, answer), parsed.defined)
        self._parsed = parsed
        self._opening = up_to_response(parsed.root)[0]

    def render(
        self,
        messages: Sequence[Turn],
        tools: Sequence[Mapping[str, Any]],
        *,
        thinking: Mapping[str, Any],
        suffix: str = "",
    ) -> str:
        """Return a prompt. `thinking` has Think, ThinkLevel and IsThinkSet. Raises:
        GoTemplateError"""
        turns = merged(messages)
        if suffix:
            prompt = _system_of([turn for turn in turns if turn["role"] == "user"], "user")
            values = {"Prompt": prompt, "Suffix": suffix, RESPONSE: "", **thinking}
            return run(self._parsed.root, self._parsed.defined, values)
        if "Messages" not in self.names:
            return "".join(self._exchanges(turns, thinking))
        values = {
            "System": _system_of(messages, "system"),
            "Messages": [Record(MESSAGE, _with_go_fields(turn, turns)) for turn in turns],
            "Tools": JsonList(Record(TOOL, tool) for tool in tools),
            RESPONSE: "",
            **thinking,
        }
        return run(self._parsed.root, self._parsed.defined, values)

    def _exchanges(self, turns: Sequence[Turn], thinking: Mapping[str, Any]) -> Iterator[str]:
        """Yield the text of each exchange; the last one ends where the response is to begin."""
        values = dict.fromkeys(("System", "Prompt", RESPONSE), "")
        later = {"system": ("Prompt", RESPONSE), "user": (RESPONSE,), "assistant": ()}
        names = {"system": "System", "user": "Prompt", "assistant": RESPONSE}
        for turn in turns:
            role = turn["role"]
            if any(values[name] for name in later.get(role, ())):
                yield run(self._parsed.root, self._parsed.defined, {**values, **thinking})
                values = dict.fromkeys(values, "")
            if role in names:
                values[names[role]] = turn["content"]
        yield run(self._opening, self._parsed.defined, {**values, **thinking})


def merged(messages: Sequence[Turn]) -> list[Turn]:
    """Return the messages, those of one role after another as one: a text may follow a text, but
    calls, thoughts and results stay on their own."""
    turns: list[Turn] = []
    for message in messages:
        is_plain = message["role"] != "tool" and not (
            message.get("tool_calls") or message.get("reasoning_content")
        )
        if is_plain and turns and turns[-1]["role"] == message["role"]:
            text = f"{turns[-1]['content']}{BETWEEN}{message['content']}"
            turns[-1] = turns[-1] | {"content": text}
        else:
            turns.append(dict(message))
    return turns


def _system_of(messages: Sequence[Turn], role: str) -> str:
    return BETWEEN.join(turn["content"] for turn in messages if turn["role"] == role)


def _with_go_fields(turn: Turn, turns: Sequence[Turn]) -> Turn:
    """Return a message with the names of Ollama's API for thoughts and a result's tool."""
    fields = {**turn, "thinking": turn.get("reasoning_content", "")}
    calls = turn.get("tool_calls", ())
    fields["tool_calls"] = [
        {**call, "function": {"index": i, **call["function"]}} for i, call in enumerate(calls)
    ]
    if turn["role"] == "tool":
        fields["tool_name"] = turn.get("name") or _called(turn.get("tool_call_id"), turns)
    return fields


def _called(call_id: str | None, turns: Sequence[Turn]) -> str:
    """Return the name of the function that a call of an earlier turn names."""
    calls = (call for turn in turns for call in turn.get("tool_calls", ()))
    return next((str(c["function"]["name"]) for c in calls if c.get("id") == call_id), "")


def up_to_response(nodes: Nodes) -> tuple[Nodes, bool]:
    """Return the nodes without what is written after the first response, and whether there is
    one."""
    found: list[Node] = []
    for node in nodes:
        if isinstance(node, Branch):
            body, is_cut = up_to_response(node.body)
            otherwise, is_cut = ((), True) if is_cut else up_to_response(node.otherwise)
            found.append(Branch(node.kind, node.pipe, body, otherwise, node.line))
            if is_cut:
                return tuple(found), True
            continue
        found.append(node)
        if isinstance(node, Action) and RESPONSE in _names_of(node.pipe):
            return tuple(found), True
    return tuple(found), False


def names_in(nodes: Nodes) -> Iterator[str]:
    """Yield the names of all fields in a template."""
    for operand in _operands(nodes):
        if isinstance(operand, Dot | Variable | Chain):
            yield from operand.fields


def _names_of(pipe: Pipe) -> set[str]:
    return set(names_in((Action(pipe, 0),)))


def _operands(nodes: Nodes) -> Iterator[Any]:
    for node in nodes:
        if isinstance(node, Action | Branch | Call) and node.pipe is not None:
            yield from _operands_of(node.pipe)
        if isinstance(node, Branch):
            yield from _operands(node.body)
            yield from _operands(node.otherwise)


def _operands_of(pipe: Pipe) -> Iterator[Any]:
    for command in pipe.commands:
        for operand in command:
            yield operand
            if isinstance(operand, Chain):
                yield from _operands_of(operand.pipe)
