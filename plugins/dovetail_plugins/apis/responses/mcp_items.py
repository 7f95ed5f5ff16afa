"""Output items of tool servers: the list of a server's tools, and a call that the server makes.

Source: the OpenAI API reference, responses, tools of type mcp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail_plugins.apis._content_blocks import BlockChange, ContentBlock
from dovetail_plugins.apis.responses.mcp import McpTool
from dovetail_plugins.apis.responses.output_items import Emit, Event, OutputItem, new_id
from dovetail_plugins.apis.responses.protocol import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTools:
    """The tools of one tool server that a request offers, under the request's label."""

    label: str
    tools: Sequence[McpTool]

    def as_item(self) -> Item:
        """Return the list as a new item."""
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            for tool in self.tools
        ]
        return {
            "id": new_id("mcpl"),
            "type": "mcp_list_tools",
            "server_label": self.label,
            "tools": tools,
            "error": None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """The end of a block's call: the tool's output, or an error in the API's format."""

    block: ContentBlock
    output: str | None = None
    error: dict[str, Any] | None = None


def list_events(item: Item, index: int, emit: Emit) -> list[Event]:
    """Return the events of a list of tools."""
    place = {"output_index": index}
    inner = place | {"item_id": item["id"]}
    return [
        emit("response.output_item.added", item=item | {"tools": []}, **place),
        emit("response.mcp_list_tools.in_progress", **inner),
        emit("response.mcp_list_tools.completed", **inner),
        emit("response.output_item.done", item=item, **place),
    ]


class McpCall(OutputItem):
    """A call of a server's tool. Its end comes after its block's."""

    prefix = "mcp"

    def __init__(self, block: ContentBlock, index: int, label: str) -> None:
        super().__init__(block, index)
        self._label = label
        self.end: CallEnd | None = None

    def status(self, *, is_running: bool) -> str:
        """Return its status in a response that runs, or has ended."""
        if self.end is None:
            return "in_progress" if is_running else "incomplete"
        return "completed" if self.end.error is None else "failed"

    def fields(self) -> Item:
        return {
            "type": "mcp_call",
            "server_label": self._label,
            "name": self.block.name,
            "arguments": self.block.text,
            "output": self.end.output if self.end else None,
            "error": self.end.error if self.end else None,
            "approval_request_id": None,
        }

    def events(self, change: BlockChange, status: str, emit: Emit) -> list[Event]:
        if change.what == "closed":
            return self.closed(emit)
        return super().events(change, status, emit)

    def opened(self, emit: Emit) -> list[Event]:
        added = self.added(emit, arguments="")
        return [added, emit("response.mcp_call.in_progress", **self._inner)]

    def grown(self, text: str, emit: Emit) -> list[Event]:
        return [emit("response.mcp_call_arguments.delta", delta=text, **self._inner)]

    def closed(self, emit: Emit) -> list[Event]:
        arguments = self.block.text
        return [emit("response.mcp_call_arguments.done", arguments=arguments, **self._inner)]

    def ended(self, end: CallEnd, emit: Emit) -> list[Event]:
        """Return the events of the call's end. Mutates: self"""
        self.end = end
        word = self.status(is_running=True)
        return [emit(f"response.mcp_call.{word}", **self._inner), self.done(word, emit)]
