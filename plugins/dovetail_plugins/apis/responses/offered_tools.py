"""The tools that a response request offers, as chat tools, and their names in the answer.

The types are listed in `words.TOOLS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import RequestError
from dovetail.server.endpoint import is_deep, text_grammar_of
from dovetail_plugins.apis.responses.protocol import Item, ResponsesRequest
from dovetail_plugins.apis.responses.turns import in_namespace
from dovetail_plugins.apis.responses.words import TOOLS

_FUNCTION = ("name", "description", "parameters", "strict")
_CUSTOM = ("name", "description", "format")
_FIELDS = {
    "function": ("type", *_FUNCTION),
    "custom": ("type", *_CUSTOM),
    "namespace": ("type", "name", "description"),
    "mcp": ("type", "server_label", "allowed_tools", "require_approval"),
}
"""The fields of each type that are read, and echoed in a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tool:
    """A tool that the client runs, and its place in the body."""

    given: Mapping[str, Any]
    where: str
    namespace: str = ""

    @property
    def kind(self) -> str:
        """Return its type."""
        return str(self.given.get("type") or "function")

    @property
    def name(self) -> str:
        """Return the name that the model sees. Raises: RequestError"""
        name = self.given.get("name")
        return in_namespace(self.namespace, _checked(name, self.where))


def tools_of(body: ResponsesRequest, offered: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the tools as chat tools. `offered` are functions of servers. Raises: RequestError"""
    found = list(_tools(body))
    _check(found)
    servers = (_Tool(given=tool, where="tools") for tool in offered)
    return [_chat_tool(tool) for tool in (*found, *servers)]


def namespaces_of(body: ResponsesRequest) -> dict[str, tuple[str, str]]:
    """Return the name that the model sees -> (namespace, name), for each tool in a namespace."""
    return {
        tool.name: (tool.namespace, str(tool.given["name"]))
        for tool in _tools(body)
        if tool.namespace
    }


def left_out_tools(body: ResponsesRequest) -> list[str]:
    """Return the names to report for tools without effect."""
    kinds = [str(tool.get("type")) for tool in body.tools or () if _is_left(tool)]
    return [f"tools.{kind}" for kind in dict.fromkeys(kinds)]


def is_mcp(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool represents the tools of a server."""
    return tool.get("type") == "mcp"


def repeated(tool: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a tool as the response echoes it: the fields that were read. Empty if it is left
    out."""
    if _is_left(tool):
        return []
    kind = tool.get("type") or "function"
    found = {name: tool[name] for name in _FIELDS[kind] if name in tool}
    if kind == "function":
        return [{"strict": None, **found}]
    if kind == "namespace":
        found["tools"] = [one for inner in tool["tools"] for one in repeated(inner)]
    return [found]


def choice_of(body: ResponsesRequest, labels: Mapping[str, str]) -> str | dict[str, Any] | None:
    """Return tool_choice in chat's form. `labels` maps tool names to server labels.

    Raises: RequestError
    """
    choice = body.tool_choice
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "allowed_tools":
        return _named(choice, labels, "tool_choice")[0]
    where = "tool_choice.tools"
    listed = choice.get("allowed_tools", choice)
    entries = listed.get("tools") if isinstance(listed, dict) else None
    if not isinstance(entries, list):
        raise RequestError("must list tools.", where=where)
    found = [
        one
        for number, entry in enumerate(entries)
        if not (isinstance(entry, dict) and _is_left(entry))
        for one in _named(entry, labels, f"{where}[{number}]")
    ]
    mode = listed.get("mode", "auto")
    if entries and not found and mode == "auto":
        return "none"
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": found}}


def _named(entry: Any, labels: Mapping[str, str], where: str) -> list[dict[str, Any]]:
    """Return the tools that an entry names, in chat's form. Raises: RequestError"""
    kind = entry.get("type", "function") if isinstance(entry, dict) else None
    if kind == "mcp":
        name, label = entry.get("name"), entry.get("server_label")
        names = [tool for tool in labels if labels[tool] == label and name in (None, tool)]
        is_one = name is not None or where != "tool_choice"
        if names and is_one:
            return [{"type": "function", "function": {"name": tool}} for tool in names]
    inner = entry.get(kind, entry) if kind in ("function", "custom") else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise RequestError(
            "must be auto, none, required, or name a function, a custom tool, or a tool of an "
            "offered MCP server.",
            where=where,
            fix="name a tool that the client runs; this server runs those of --tool-server alone.",
            code="unsupported_field",
        )
    name = in_namespace(entry.get("namespace"), inner["name"])
    return [{"type": kind, str(kind): {"name": name}}]


def _is_left(tool: Mapping[str, Any]) -> bool:
    kind = tool.get("type") or "function"
    return isinstance(kind, str) and (kind not in TOOLS or TOOLS[kind].how == "left out")


def _tools(body: ResponsesRequest) -> Iterator[_Tool]:
    """Yield the client's tools, including those in namespaces. Raises: RequestError"""
    for number, tool in enumerate(body.tools or ()):
        where = f"tools[{number}]"
        kind = tool.get("type") or "function"
        if not isinstance(kind, str):
            raise RequestError("must be text.", where=f"{where}.type")
        if kind == "namespace":
            yield from _within(tool, where)
        elif kind in ("function", "custom"):
            yield _Tool(given=tool, where=where)


def _within(tool: Mapping[str, Any], where: str) -> Iterator[_Tool]:
    """Yield the tools of a namespace. Raises: RequestError"""
    name, inner = tool.get("name"), tool.get("tools")
    space = _checked(name, where)
    if not isinstance(inner, list):
        raise RequestError("must be a list of tools.", where=f"{where}.tools")
    for number, one in enumerate(inner):
        at = f"{where}.tools[{number}]"
        if not isinstance(one, dict):
            raise RequestError("must be an object.", where=at)
        if (one.get("type") or "function") not in ("function", "custom"):
            raise RequestError("a namespace holds functions and custom tools.", where=f"{at}.type")
        yield _Tool(given=one, where=at, namespace=space)


def _checked(name: Any, where: str) -> str:
    """Return the name of a tool or a namespace. Raises: RequestError"""
    if not isinstance(name, str) or name.split() != [name]:
        raise RequestError("must be a name without blanks.", where=f"{where}.name")
    return name


def _check(tools: Sequence[_Tool]) -> None:
    """Raise RequestError for schemas too deep to be echoed, for faulty grammars, and for two tools
    whose names become equal through a namespace."""
    spaces: dict[str, str] = {}
    for tool in tools:
        if is_deep(tool.given.get("parameters")):
            raise RequestError("is nested too deep.", where=f"{tool.where}.parameters")
        if tool.kind == "custom":
            text_grammar_of(tool.given.get("format"), f"{tool.where}.format")
        if spaces.setdefault(tool.name, tool.namespace) != tool.namespace:
            raise RequestError(f'there are two tools "{tool.name[:64]}".', where=tool.where)


def _chat_tool(tool: _Tool) -> dict[str, Any]:
    names = _CUSTOM if tool.kind == "custom" else _FUNCTION
    found = {name: tool.given[name] for name in names if tool.given.get(name) is not None}
    return {"type": tool.kind, tool.kind: {**found, "name": tool.name}}
