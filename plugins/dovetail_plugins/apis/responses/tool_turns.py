"""MCP tools that the server calls itself: those that a response offers, and the turns with calls.

The model calls a tool, its server answers, and the model continues, within limits on turns and
calls. Source: the OpenAI API reference, responses, tools of type mcp.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dovetail.errors import RequestError
from dovetail.json_values import InvalidJson, json_value
from dovetail.server.endpoint import App, Generation, Step
from dovetail_plugins.apis._content_blocks import ContentBlock
from dovetail_plugins.apis.responses.mcp import McpFault, McpServer, McpTool
from dovetail_plugins.apis.responses.mcp_items import CallEnd, ListedTools
from dovetail_plugins.apis.responses.protocol import ResponsesRequest
from dovetail_plugins.apis.responses.response import (
    MAX_TOKENS,
    GrowingResponse,
    News,
    TurnEnd,
)

MAX_TURNS = 16
KIND = "mcp"
ADDRESSES = ("server_url", "connector_id", "tunnel_id", "authorization", "headers")
"""Fields with which other services reach servers named in requests."""
_READ = frozenset({"type", "server_label", "allowed_tools", "require_approval"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The servers' tools that a request offers. `ignored` are fields without effect."""

    lists: Sequence[ListedTools] = ()
    servers: Mapping[str, McpServer] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def functions(self) -> list[dict[str, Any]]:
        """Return the tools as function tools of a request."""
        return [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description or None,
                "parameters": tool.schema,
            }
            for listed in self.lists
            for tool in listed.tools
        ]

    def served(self) -> frozenset[str]:
        """Return the labels of the servers."""
        return frozenset(listed.label for listed in self.lists)

    def labels(self) -> dict[str, str]:
        """Return tool name -> label of its server."""
        return {tool.name: listed.label for listed in self.lists for tool in listed.tools}


def offer_of(body: ResponsesRequest, servers: Sequence[McpServer]) -> Offer:
    """Return the offer made by a request's mcp tools. Raises: RequestError"""
    tools = body.tools or ()
    taken = {
        str(tool.get("name") or tool.get("type")) for tool in tools if tool.get("type") != KIND
    }
    lists: list[ListedTools] = []
    servers_by_tool: dict[str, McpServer] = {}
    ignored: list[str] = []
    for number, tool in enumerate(tools):
        if tool.get("type") != KIND:
            continue
        where = f"tools[{number}]"
        server = _server(tool, servers, where)
        if server is None:
            continue
        ignored += [f"{where}.{name}" for name in tool if name not in {*_READ, *ADDRESSES}]
        listed = ListedTools(label=str(tool["server_label"]), tools=_allowed(tool, server, where))
        for name in (one.name for one in listed.tools):
            if name in taken or name in servers_by_tool:
                raise RequestError(
                    f'there are two tools "{name}".',
                    where=where,
                    fix="leave one out with allowed_tools.",
                )
            servers_by_tool[name] = server
        lists.append(listed)
    return Offer(lists=lists, servers=servers_by_tool, ignored=ignored)


def _server(tool: Mapping[str, Any], servers: Sequence[McpServer], where: str) -> McpServer | None:
    """Return the server that an entry names; None if it is not one of this server's, or if the
    entry says where it is: requests cannot name addresses. Raises: RequestError"""
    label = tool.get("server_label")
    if label is not None and not isinstance(label, str):
        raise RequestError("must be text.", where=f"{where}.server_label")
    if any(tool.get(name) is not None for name in ADDRESSES):
        return None
    by_name = [server for server in servers if server.name == label and label]
    chosen = [server for server in servers if server.label == label] or by_name
    if len(chosen) != 1:
        return None
    if tool.get("require_approval") not in (None, "never"):
        raise RequestError(
            "this server runs MCP tools without approval.",
            where=f"{where}.require_approval",
            fix='set it to "never".',
            code="unsupported_field",
        )
    return chosen[0]


def _allowed(tool: Mapping[str, Any], server: McpServer, where: str) -> list[McpTool]:
    """Return the tools of a server that an entry allows. Raises: RequestError"""
    allowed = tool.get("allowed_tools")
    if isinstance(allowed, dict) and not set(allowed) - {"tool_names"}:
        allowed = allowed.get("tool_names")
    if allowed is None:
        return list(server.tools)
    known = {one.name: one for one in server.tools}
    if not isinstance(allowed, list) or not all(isinstance(name, str) for name in allowed):
        raise RequestError("must be a list of names.", where=f"{where}.allowed_tools")
    for name in allowed:
        if name not in known:
            raise RequestError(
                f"the server has no tool {json.dumps(name)[:128]}.",
                where=f"{where}.allowed_tools",
            )
    return [known[name] for name in dict.fromkeys(allowed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTurns:
    """The turns of a response with such tools. `follow` returns the generation that continues the
    answer so far, with changes to the chat request."""

    server: App
    offer: Offer
    answer: GrowingResponse
    follow: Callable[[dict[str, Any]], Awaitable[Generation]]
    max_tokens: int | None
    max_calls: int | None

    async def run(self, first: Generation) -> AsyncGenerator[News, None]:
        """Yield the output of all turns; the caller must pass each item to `answer` before the
        next.

        Raises: RequestError, what the engine raises
        """
        generation, num_tokens, num_calls = first, 0, 0
        for turns_left in reversed(range(MAX_TURNS)):
            last: Step | None = None
            steps = generation.steps(self.server)
            try:
                async for step in steps:
                    last = step
                    yield replace(step, finish_reason=None)
            finally:
                await steps.aclose()
            assert last is not None and last.finish_reason is not None
            reason = last.finish_reason
            calls = self.answer.pending()
            if not calls or reason != "completed":
                break
            awaits_client = self.answer.awaits_client
            yield TurnEnd()
            for block in calls:
                num_calls += 1
                is_over = self.max_calls is not None and num_calls > self.max_calls
                yield _over(block) if is_over else await self._call(block)
            num_tokens += last.num_generated_tokens
            if awaits_client:
                break
            if self.max_tokens is not None and num_tokens >= self.max_tokens:
                reason = MAX_TOKENS
                break
            has_calls = self.max_calls is None or num_calls < self.max_calls
            changes = self._changes(num_tokens, turns_left > 1 and has_calls)
            generation = await self.follow(changes)
        yield TurnEnd(finish_reason=reason)

    def _changes(self, num_tokens: int, may_call: bool) -> dict[str, Any]:
        """Return the changes for the next turn. A forced choice has already been made."""
        may_call = may_call and self.server.frontend.enable_auto_tool_choice
        changes: dict[str, Any] = {"tool_choice": "auto" if may_call else "none"}
        if self.max_tokens is not None:
            changes["max_completion_tokens"] = self.max_tokens - num_tokens
        return changes

    async def _call(self, block: ContentBlock) -> CallEnd:
        """Return the result of a call. A fault is passed to the model and does not end the
        response."""
        try:
            arguments = json_value(block.text or "{}")
        except InvalidJson:
            arguments = None
        if not isinstance(arguments, dict):
            return _fault(block, "the arguments are not a JSON object.", -32602)
        try:
            result = await self.offer.servers[block.name].call(block.name, arguments)
        except McpFault as error:
            return _fault(block, error.message, error.code)
        if result.is_error:
            content = [{"type": "text", "text": result.text}]
            return CallEnd(
                block=block, error={"type": "mcp_tool_execution_error", "content": content}
            )
        return CallEnd(block=block, output=result.text)


def _over(block: ContentBlock) -> CallEnd:
    return _fault(block, "max_tool_calls is used up.", -32000)


def _fault(block: ContentBlock, message: str, code: int) -> CallEnd:
    kind = "http_error" if code > 0 else "mcp_protocol_error"
    return CallEnd(block=block, error={"type": kind, "code": code, "message": message})
