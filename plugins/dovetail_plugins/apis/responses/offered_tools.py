"""The tools that a response request offers, as chat tools, and their names in the answer.

The types are listed in `words.TOOLS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import RequestError
from dovetail.server.endpoint import is_deep, text_grammar_of
from dovetail_plugins.apis.responses.client_tools import CLIENT_TOOLS, ClientTool
from dovetail_plugins.apis.responses.protocol import Item, ResponsesRequest
from dovetail_plugins.apis.responses.turns import in_namespace
from dovetail_plugins.apis.responses.words import TOOLS

_FUNCTION = ("name", "description", "parameters", "strict")
_CUSTOM = ("name", "description", "format")
_NAMED = ("function", "custom")
"""The types that have names, and may be in a namespace."""
_FIELDS = {
    "function": ("type", *_FUNCTION),
    "custom": ("type", *_CUSTOM),
    "namespace": ("type", "name", "description"),
    "mcp": ("type", "server_label", "allowed_tools", "require_approval"),
    "apply_patch": ("type",),
    "local_shell": ("type",),
    "shell": ("type", "environment"),
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
        if self.client_tool is not None:
            return self.kind
        name = self.given.get("name")
        return in_namespace(self.namespace, _checked(name, self.where))

    @property
    def client_tool(self) -> ClientTool | None:
        """Return the client tool, if its calls have an item format of their own."""
        return CLIENT_TOOLS.get(self.kind)


def tools_of(body: ResponsesRequest, offered: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the tools as chat tools. `offered` are functions of servers. Raises: RequestError"""
    found = [*_tools(body), *(_Tool(given=tool, where="tools") for tool in offered)]
    _check(found)
    return [_chat_tool(tool) for tool in found]


def namespaces_of(body: ResponsesRequest) -> dict[str, tuple[str, str]]:
    """Return the name that the model sees -> (namespace, name), for each tool in a namespace."""
    return {
        tool.name: (tool.namespace, str(tool.given["name"]))
        for tool in _tools(body)
        if tool.namespace
    }


def client_tools_of(body: ResponsesRequest) -> dict[str, ClientTool]:
    """Return name -> tool, for the tools whose calls have their own item format."""
    return {tool.name: tool.client_tool for tool in _tools(body) if tool.client_tool}


def left_out_tools(body: ResponsesRequest, served: Collection[str]) -> list[str]:
    """Return the names to report for tools without effect. `served` are the labels of servers whose
    tools are offered."""
    kinds: list[str] = []
    for where, tool in _offered(body):
        labels = served if where.startswith("tools") else ()  # of servers, items offer nothing
        kinds += [str(tool.get("type"))] if _is_left(tool, labels) else _left_within(tool)
    return [f"tools.{kind}" for kind in dict.fromkeys(kinds)]


def is_mcp(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool represents the tools of a server."""
    return tool.get("type") == "mcp"


def repeated(tool: Mapping[str, Any], served: Collection[str]) -> list[dict[str, Any]]:
    """Return a tool as the response echoes it: the fields that were read. Empty if it is left
    out."""
    if _is_left(tool, served):
        return []
    kind = tool.get("type") or "function"
    found = {name: tool[name] for name in _FIELDS[kind] if name in tool}
    if kind == "function":
        return [{"strict": None, **found}]
    if kind == "namespace":
        named = [one for one in tool["tools"] if (one.get("type") or "function") in _NAMED]
        found["tools"] = [one for inner in named for one in repeated(inner, served)]
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
        if not _names_left_tool(entry, body, frozenset(labels.values()))
        for one in _members(entry, body) or _named(entry, labels, f"{where}[{number}]")
    ]
    mode = listed.get("mode", "auto")
    if entries and not found:
        if mode != "auto":
            raise RequestError("lists only tools that are left out here.", where=where)
        return "none"
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": found}}


def _names_left_tool(entry: Any, body: ResponsesRequest, served: Collection[str]) -> bool:
    """Return whether an entry of allowed_tools names a tool that is left out."""
    if not isinstance(entry, dict):
        return False
    if entry.get("type") not in ("mcp", "shell"):
        return _is_left(entry, served)
    same = [
        tool
        for _, tool in _offered(body)
        if all(tool.get(name) == entry.get(name) for name in ("type", "server_label"))
    ]
    return bool(same) and all(_is_left(tool, served) for tool in same)


def _members(entry: Any, body: ResponsesRequest) -> list[dict[str, Any]]:
    """Return the tools of the namespace that an entry names, in chat's form."""
    if not isinstance(entry, dict) or entry.get("type") != "namespace":
        return []
    space = entry.get("name")
    tools = [tool for tool in _tools(body) if tool.namespace and tool.namespace == space]
    return [{"type": tool.kind, tool.kind: {"name": tool.name}} for tool in tools]


def _named(entry: Any, labels: Mapping[str, str], where: str) -> list[dict[str, Any]]:
    """Return the tools that an entry names, in chat's form. Raises: RequestError"""
    kind = entry.get("type", "function") if isinstance(entry, dict) else None
    if kind == "mcp":
        name, label = entry.get("name"), entry.get("server_label")
        names = [tool for tool in labels if labels[tool] == label and name in (None, tool)]
        is_one = name is not None or where != "tool_choice"
        if names and is_one:
            return [{"type": "function", "function": {"name": tool}} for tool in names]
    if isinstance(kind, str) and kind in CLIENT_TOOLS:
        return [{"type": "function", "function": {"name": kind}}]
    inner = entry.get(kind, entry) if kind in _NAMED else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise RequestError(
            "must be auto, none, required, or name a function, a custom tool, a shell, "
            "apply_patch, or a tool of an offered MCP server.",
            where=where,
            fix="name a tool that the client runs; this server runs those of --tool-server alone.",
            code="unsupported_field",
        )
    name = in_namespace(entry.get("namespace"), inner["name"])
    return [{"type": kind, str(kind): {"name": name}}]


def _is_left(tool: Mapping[str, Any], served: Collection[str]) -> bool:
    """Return whether a tool is left out: a service would have to run it."""
    kind = tool.get("type") or "function"
    if kind == "mcp":
        return tool.get("server_label") not in served
    if kind == "shell":
        return not _is_local(tool.get("environment"))
    return isinstance(kind, str) and (kind not in TOOLS or TOOLS[kind].how == "left out")


def _is_local(environment: Any) -> bool:
    """Return whether a shell's environment is the client's, not a container of a service."""
    return not isinstance(environment, dict) or environment.get("type") == "local"


def _tools(body: ResponsesRequest) -> Iterator[_Tool]:
    """Yield the client's tools, including those in namespaces. Raises: RequestError"""
    for where, tool in _offered(body):
        kind = tool.get("type") or "function"
        if not isinstance(kind, str):
            raise RequestError("must be text.", where=f"{where}.type")
        if kind == "namespace":
            yield from _within(tool, where)
        elif kind in _NAMED or (kind in CLIENT_TOOLS and not _is_left(tool, ())):
            yield _Tool(given=tool, where=where)


def _offered(body: ResponsesRequest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each tool of the request and of its `additional_tools` items, and where it is.

    Raises: RequestError
    """
    lists: list[tuple[str, Any]] = [("tools", body.tools or [])]
    for number, item in enumerate(body.input if isinstance(body.input, list) else ()):
        if item.get("type") == "additional_tools":
            lists.append((f"input[{number}].tools", item.get("tools")))
    for where, tools in lists:
        if not isinstance(tools, list):
            raise RequestError("must be a list of tools.", where=where)
        for number, tool in enumerate(tools):
            if not isinstance(tool, dict):
                raise RequestError("must be an object.", where=f"{where}[{number}]")
            yield f"{where}[{number}]", tool


def _within(tool: Mapping[str, Any], where: str) -> Iterator[_Tool]:
    """Yield the functions and custom tools of a namespace. Raises: RequestError"""
    name, inner = tool.get("name"), tool.get("tools")
    space = _checked(name, where)
    if not isinstance(inner, list):
        raise RequestError("must be a list of tools.", where=f"{where}.tools")
    for number, one in enumerate(inner):
        at = f"{where}.tools[{number}]"
        if not isinstance(one, dict):
            raise RequestError("must be an object.", where=at)
        kind = one.get("type") or "function"
        if not isinstance(kind, str) or kind == "namespace":
            raise RequestError("a namespace holds functions and custom tools.", where=f"{at}.type")
        if kind in _NAMED:
            yield _Tool(given=one, where=at, namespace=space)


def _left_within(tool: Mapping[str, Any]) -> list[str]:
    """Return the types of a namespace's other tools, which are left out."""
    inner = tool.get("tools")
    if tool.get("type") != "namespace" or not isinstance(inner, list):
        return []
    kinds = [str(one.get("type") or "function") for one in inner if isinstance(one, dict)]
    return [kind for kind in kinds if kind not in _NAMED]


def _checked(name: Any, where: str) -> str:
    """Return the name of a tool or a namespace. Raises: RequestError"""
    if not isinstance(name, str) or name.split() != [name]:
        raise RequestError("must be a name without blanks.", where=f"{where}.name")
    return name


def _check(tools: Sequence[_Tool]) -> None:
    """Raise RequestError for schemas too deep to be echoed, for faulty grammars, and for two tools
    of one name whose calls could not be told apart."""
    owners: dict[str, tuple[str, bool]] = {}
    for tool in tools:
        if is_deep(tool.given.get("parameters")):
            raise RequestError("is nested too deep.", where=f"{tool.where}.parameters")
        if tool.kind == "custom":
            text_grammar_of(tool.given.get("format"), f"{tool.where}.format")
        owner = (tool.namespace, tool.client_tool is not None)
        if owners.setdefault(tool.name, owner) != owner:
            raise RequestError(
                f'there are two tools "{tool.name[:64]}".',
                where=tool.where,
                fix="rename one of them.",
            )


def _chat_tool(tool: _Tool) -> dict[str, Any]:
    if tool.client_tool is not None:
        return {"type": "function", "function": tool.client_tool.function(tool.given)}
    names = _CUSTOM if tool.kind == "custom" else _FUNCTION
    found = {name: tool.given[name] for name in names if tool.given.get(name) is not None}
    return {"type": tool.kind, tool.kind: {**found, "name": tool.name}}
