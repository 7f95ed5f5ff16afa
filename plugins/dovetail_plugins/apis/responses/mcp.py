"""McpServer: a client of an MCP tool server, with JSON-RPC 2.0 over HTTP.

Only addresses given at server start are used. Each message is a separate POST to /mcp, limited in
time and bytes; redirects are not followed. Source: the Model Context Protocol, streamable HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import ConfigError
from dovetail.json_values import json_value
from dovetail.registry.unsupported_names import why_unsupported
from dovetail.server.endpoint import is_deep
from dovetail.version import __version__
from dovetail_plugins.http_client.connections import ConnectionPool
from dovetail_plugins.http_client.response import StreamedResponse

FLAG = "--tool-server"
PATH = "/mcp"
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26")
"""Protocol versions that are equal in the parts used here, newest first."""
CONNECT_LIMIT_S = 10.0
CALL_LIMIT_S = 30.0
MAX_REPLY_BYTES = 1 << 20
MAX_RESULT_BYTES = 1 << 16
"""The maximum size of a result passed to the model."""
MAX_PAGES = 16
MAX_NAME_CHARS = 256
_SESSION = "mcp-session-id"

logger = logging.getLogger("dovetail.server")


class McpFault(Exception):
    """A failure of a tool server. `code` is an HTTP status, or JSON-RPC's if negative."""

    def __init__(self, message: str, code: int = 502) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """A tool as described by its server. `schema` describes its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a call: its text, and whether the tool reports an error."""

    text: str
    is_error: bool = False


class McpServer:
    """One server. `label` is its address; it reports `name` and `tools` itself."""

    def __init__(self, address: str, *, call_limit_s: float = CALL_LIMIT_S) -> None:
        """Raises: ConfigError if the address is not HOST:PORT"""
        self.label = address
        self.name = ""
        self.tools: Sequence[McpTool] = ()
        self._pool = ConnectionPool(
            _parsed(address),
            host=address.encode(),
            is_reused=False,
            max_bytes=MAX_REPLY_BYTES,
        )
        self._call_limit_s = call_limit_s
        self._ids = itertools.count(1)
        self._head: dict[str, str] = {}

    async def connect(self, limit_s: float = CONNECT_LIMIT_S) -> None:
        """Start a session and fetch the list of tools. Raises: McpFault. Mutates: self"""
        async with _limit(limit_s):
            await self._initialize()
            self.tools = await self._list_tools()

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Return a tool's answer. Raises: McpFault. Mutates: self (a session that ended)"""
        params = {"name": name, "arguments": arguments}
        async with _limit(self._call_limit_s):
            try:
                found = await self._ask("tools/call", params)
            except McpFault as error:
                # The protocol's status for a session that the server has ended.
                if error.code != 404 or _SESSION not in self._head:
                    raise
                await self._initialize()
                found = await self._ask("tools/call", params)
        result = ToolResult(text=_text_of(found), is_error=found.get("isError") is True)
        if len(result.text.encode()) > MAX_RESULT_BYTES:
            raise McpFault(f"the result is longer than {MAX_RESULT_BYTES} bytes.")
        return result

    async def _initialize(self) -> None:
        self._head = {}
        about = {
            "protocolVersion": VERSIONS[0],
            "capabilities": {},
            "clientInfo": {"name": "dovetail", "version": __version__},
        }
        result = await self._ask("initialize", about)
        version = result.get("protocolVersion")
        if version not in VERSIONS:
            raise McpFault(f"it speaks version {str(version)[:32]}, not {', '.join(VERSIONS)}.")
        self._head["MCP-Protocol-Version"] = version
        self.name = str(_object(result.get("serverInfo")).get("name") or "")[:MAX_NAME_CHARS]
        await self._post({"method": "notifications/initialized"}, None)

    async def _list_tools(self) -> list[McpTool]:
        tools: list[McpTool] = []
        cursor: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self._ask("tools/list", cursor)
            given = page.get("tools")
            tools += [_tool(one) for one in given] if isinstance(given, list) else []
            if not page.get("nextCursor"):
                return tools
            cursor = {"cursor": page["nextCursor"]}
        raise McpFault(f"its list of tools has more than {MAX_PAGES} pages.")

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a method. Raises: McpFault"""
        number = next(self._ids)
        reply = await self._post({"id": number, "method": method, "params": params}, number)
        if "error" in reply:
            error = _object(reply["error"])
            code = error.get("code")
            code = code if isinstance(code, int) and code < 0 else -32603
            raise McpFault(str(error.get("message") or "no reason given")[:1024], code)
        return _object(reply.get("result"))

    async def _post(self, message: dict[str, Any], number: int | None) -> dict[str, Any]:
        """Return the message that answers `number`; empty if `number` is None. Raises: McpFault"""
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        fields = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "connection": "close",
            **self._head,
        }
        headers = [(key.encode(), value.encode()) for key, value in fields.items()]
        try:
            async with self._pool.stream("POST", PATH.encode(), headers, body) as response:
                found = await self._answer(response, number)
        except ConnectionError as error:
            raise McpFault(f"no answer: {error}.") from error
        if found is None:
            raise McpFault(f"it gives no answer to {message['method']}.")
        return found

    async def _answer(self, response: StreamedResponse, number: int | None) -> Any:
        """Return the message that answers `number`, None if there is none. Raises: McpFault,
        ConnectionError. Mutates: self (the session)"""
        if not 200 <= response.status < 300:
            raise McpFault(f"it answers {response.status}.", response.status)
        session = response.header(_SESSION.encode()).decode("latin-1")
        if re.fullmatch(r"[\x21-\x7e]{1,1024}", session):
            self._head[_SESSION] = session
        if number is None:
            return {}
        if not response.header(b"content-type").startswith(b"text/event-stream"):
            return _message(await response.read(), number)
        async for data in response.events():
            if (found := _message(data, number)) is not None:
                return found
        return None


@contextlib.asynccontextmanager
async def _limit(limit_s: float) -> AsyncIterator[None]:
    """Limit the duration of a block. Raises: McpFault"""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise McpFault(f"it took longer than {limit_s:g} s.", 504) from error


def named_servers(addresses: Sequence[str]) -> list[McpServer]:
    """Return the servers of --tool-server, not yet connected. Raises: ConfigError"""
    given = [one.strip() for text in addresses for one in text.split(",") if one.strip()]
    return [McpServer(address) for address in dict.fromkeys(given)]


async def connected(addresses: Sequence[str]) -> list[McpServer]:
    """Return the servers of --tool-server with their tools. Raises: ConfigError"""
    servers = named_servers(addresses)
    for server in servers:
        try:
            await server.connect()
        except McpFault as error:
            raise ConfigError(
                f"{server.label}: {error.message}",
                where=FLAG,
                fix=f"start an MCP server at http://{server.label}{PATH}, or leave it out.",
            ) from error
        names = ", ".join(tool.name for tool in server.tools) or "none"
        logger.info("tools of %s (%s): %s", server.label, server.name or "no name", names)
    return servers


def _parsed(address: str) -> tuple[str, int]:
    reason = why_unsupported("tool_server", address)
    fix = f"write {FLAG} HOST:PORT."
    if reason is not None:
        raise ConfigError(f'"{address}" is not available: {reason}.', where=FLAG, fix=fix)
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", address)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise ConfigError(f'"{address[:128]}" is not an address.', where=FLAG, fix=fix)
    return match[1].strip("[]"), int(match[2])


def _message(data: bytes, number: int | None) -> dict[str, Any] | None:
    """Return the answer to `number` in JSON with one or more messages; None if there is none."""
    try:
        found = json_value(data.decode("utf-8", "replace"))
        # Lone surrogates would fail the request that the text is inserted into.
        found = json_value(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    for one in found if isinstance(found, list) else [found]:
        is_answer = isinstance(one, dict) and ("result" in one or "error" in one)
        if is_answer and one.get("id") == number:
            message: dict[str, Any] = one
            return message
    return None


def _object(value: Any) -> dict[str, Any]:
    """Return an object unchanged, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _tool(given: Any) -> McpTool:
    name = _object(given).get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise McpFault("one of its tools has no name, or one of no use.")
    if is_deep(given):
        raise McpFault(f"the schema of its tool {name} is nested too deep.")
    return McpTool(
        name=name,
        description=str(given.get("description") or ""),
        schema=_object(given.get("inputSchema")) or {"type": "object"},
    )


def _text_of(found: dict[str, Any]) -> str:
    """Return a result's text; for other kinds of parts only the kind."""
    content = found.get("content")
    parts = [_object(part) for part in content] if isinstance(content, list) else []
    if not parts and "structuredContent" in found:
        return json.dumps(found["structuredContent"], ensure_ascii=False)
    return "\n".join(
        str(part.get("text", ""))
        if part.get("type") == "text"
        else f"[{str(part.get('type'))[:64]} left out: only text is read]"
        for part in parts
    )
