"""OutputItem: one item of a response while it grows, and its events. Here: text, reasoning, calls.

Each kind of item is a class. A subclass says which fields the item has, and which events its block
makes between `response.output_item.added` and `response.output_item.done`.
Source: the OpenAI API reference, responses and their streaming events.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

from dovetail_plugins.apis._content_blocks import BlockChange, ContentBlock
from dovetail_plugins.apis._sealed import sealed
from dovetail_plugins.apis.responses.logprobs import TextLogprobs
from dovetail_plugins.apis.responses.protocol import Item

SEALED_AS = "reasoning"
"""What a sealed `encrypted_content` of reasoning is for."""

Event = dict[str, Any]


class Emit(Protocol):
    """Returns an event of a type, with the stream's next sequence number."""

    def __call__(self, kind: str, /, **fields: Any) -> Event: ...


def new_id(prefix: str) -> str:
    """Return a new id of an item."""
    return f"{prefix}_{secrets.token_hex(24)}"


def compaction_item(item_id: str, seal: str) -> Item:
    """Return an item whose seal replaces earlier turns."""
    return {"id": item_id, "type": "compaction", "encrypted_content": seal}


class OutputItem(ABC):
    """A block of the answer as an item. `index` is its place in the response's output."""

    prefix: str
    """What its id begins with."""

    def __init__(self, block: ContentBlock, index: int) -> None:
        self.block = block
        self.id = new_id(self.prefix)
        self._place = {"output_index": index}
        self._inner = {"output_index": index, "item_id": self.id}

    @property
    def is_broken(self) -> bool:
        """Return whether it is a call that cannot be made."""
        return self.block.is_unfinished

    @abstractmethod
    def fields(self) -> Item:
        """Return the item's fields besides its id and status."""

    def as_item(self, status: str) -> Item:
        """Return the item so far."""
        return {"id": self.id, "status": status, **self.fields()}

    def events(self, change: BlockChange, status: str, emit: Emit) -> list[Event]:
        """Return the events of a change of the block. Mutates: self"""
        match change.what:
            case "opened":
                return self.opened(emit)
            case "grown":
                return self.grown(change.text, emit)
            case "closed":
                return [*self.closed(emit), self.done(status, emit)]

    def added(self, emit: Emit, **changes: Any) -> Event:
        """Return the event of a new item, which has these fields so far."""
        item = self.as_item("in_progress") | changes
        return emit("response.output_item.added", item=item, **self._place)

    def done(self, status: str, emit: Emit) -> Event:
        """Return the last event of the item."""
        return emit("response.output_item.done", item=self.as_item(status), **self._place)

    @abstractmethod
    def opened(self, emit: Emit) -> list[Event]:
        """Return the events of the item's beginning."""

    @abstractmethod
    def grown(self, text: str, emit: Emit) -> list[Event]:
        """Return the events of more text. Mutates: self"""

    @abstractmethod
    def closed(self, emit: Emit) -> list[Event]:
        """Return the events of the item's end, before its last one. Mutates: self"""


class _InParts(OutputItem):
    """An item whose text is its one part."""

    delta: ClassVar[str]
    text_done: ClassVar[str]

    def __init__(self, block: ContentBlock, index: int) -> None:
        super().__init__(block, index)
        self._inner["content_index"] = 0

    @abstractmethod
    def part(self, text: str) -> dict[str, Any]:
        """Return the part with this text."""

    def parts(self) -> list[dict[str, Any]]:
        """Return the parts so far."""
        return [self.part(self.block.text)] if self.block.parts else []

    def more(self) -> dict[str, Any]:
        """Return further fields of the event of the whole text."""
        return {}

    def opened(self, emit: Emit) -> list[Event]:
        return [
            self.added(emit, content=[]),
            emit("response.content_part.added", part=self.part(""), **self._inner),
        ]

    def grown(self, text: str, emit: Emit) -> list[Event]:
        return [emit(self.delta, delta=text, **self._inner)]

    def closed(self, emit: Emit) -> list[Event]:
        text = self.block.text
        return [
            emit(self.text_done, text=text, **self.more(), **self._inner),
            emit("response.content_part.done", part=self.part(text), **self._inner),
        ]


class TextItem(_InParts):
    """A message of the assistant."""

    prefix = "msg"
    delta = "response.output_text.delta"
    text_done = "response.output_text.done"

    def __init__(self, block: ContentBlock, index: int, logprobs: TextLogprobs | None) -> None:
        super().__init__(block, index)
        self._logprobs = logprobs
        self._entries: list[dict[str, Any]] = []

    def fields(self) -> Item:
        return {"type": "message", "role": "assistant", "content": self.parts()}

    def part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], **self.more()}

    def more(self) -> dict[str, Any]:
        return {"logprobs": list(self._entries)}

    def grown(self, text: str, emit: Emit) -> list[Event]:
        entries = [] if self._logprobs is None else self._logprobs.take(text)
        self._entries += entries
        return [emit(self.delta, delta=text, logprobs=entries, **self._inner)]


class ReasoningItem(_InParts):
    """The model's thinking. With `seals` its end has a sealed copy, which clients send back."""

    prefix = "rs"
    delta = "response.reasoning_text.delta"
    text_done = "response.reasoning_text.done"

    def __init__(self, block: ContentBlock, index: int, *, seals: bool) -> None:
        super().__init__(block, index)
        self._seals = seals
        self._seal: str | None = None

    def fields(self) -> Item:
        seal = {"encrypted_content": self._seal} if self._seals else {}
        return {"type": "reasoning", "summary": [], "content": self.parts(), **seal}

    def part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}

    def closed(self, emit: Emit) -> list[Event]:
        if self._seals:
            self._seal = sealed(self.block.text, SEALED_AS)
        return super().closed(emit)


class FunctionCall(OutputItem):
    """A call of the client's function. `name` is the client's name for it, in its `namespace`."""

    prefix = "fc"
    kind: ClassVar[str] = "function_call"
    text: ClassVar[str] = "arguments"
    event: ClassVar[str] = "response.function_call_arguments"

    def __init__(
        self, block: ContentBlock, index: int, *, name: str = "", namespace: str = ""
    ) -> None:
        super().__init__(block, index)
        self.name = name or block.name
        self._namespace = namespace

    def fields(self) -> Item:
        call = {"type": self.kind, "call_id": self.block.call_id, "name": self.name}
        call[self.text] = self.block.text
        return call | ({"namespace": self._namespace} if self._namespace else {})

    def opened(self, emit: Emit) -> list[Event]:
        return [self.added(emit, **{self.text: ""})]

    def grown(self, text: str, emit: Emit) -> list[Event]:
        return [emit(f"{self.event}.delta", delta=text, **self._inner)]

    def closed(self, emit: Emit) -> list[Event]:
        fields = {self.text: self.block.text, **self.done_fields()}
        return [emit(f"{self.event}.done", **fields, **self._inner)]

    def done_fields(self) -> dict[str, Any]:
        """Return further fields of the event of the whole text."""
        return {"name": self.name}


class CustomCall(FunctionCall):
    """A call of the client's custom tool, which takes text."""

    prefix = "ctc"
    kind = "custom_tool_call"
    text = "input"
    event = "response.custom_tool_call_input"

    def done_fields(self) -> dict[str, Any]:
        return {}
