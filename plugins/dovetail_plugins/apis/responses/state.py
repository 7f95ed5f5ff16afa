"""The state of /v1/responses: stored responses and conversations, and tool servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.server.endpoint import state_of
from dovetail_plugins.apis.responses.conversations import ConversationStore
from dovetail_plugins.apis.responses.mcp import McpServer, connected
from dovetail_plugins.apis.responses.store import ResponseStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesState:
    """The responses and conversations of one process, and the tool servers with their tools."""

    stored: ResponseStore = field(default_factory=ResponseStore)
    conversations: ConversationStore = field(default_factory=ConversationStore)
    tool_servers: Sequence[McpServer] = ()


@asynccontextmanager
async def opened_state(frontend: FrontendConfig) -> AsyncIterator[ResponsesState]:
    """Yield the state, with the tools of --tool-server fetched. Raises: ConfigError"""
    yield ResponsesState(tool_servers=await connected(frontend.tool_server))


ResponsesStateOf = Annotated[ResponsesState, Depends(state_of(ResponsesState))]
