"""The turns of a conversation as chat messages, each with its place in the client's body.

A result of a tool is a message of its own, and so is the system prompt. Errors of what reads chat
messages name the client's turns and blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import RequestError
from dovetail.server.endpoint import in_words_of, is_left_out, joined
from dovetail_plugins.apis.messages.content import (
    Part,
    parts_of,
    result_of,
    text_of,
    text_of_block,
    with_notes,
)
from dovetail_plugins.apis.messages.protocol import Block, CountRequest, Turn
from dovetail_plugins.apis.messages.thoughts import sealed_thought, thought_of
from dovetail_plugins.apis.messages.words import BLOCKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A chat message, and where it and the parts of its content come from."""

    message: dict[str, Any]
    where: str
    parts: Sequence[str] = ()


def chat_turns(body: CountRequest, *, sees_images: bool) -> Iterator[ChatTurn]:
    """Yield the turns; without `sees_images`, notes in place of images in tool results. Raises:
    RequestError"""
    if body.system:
        message = {"role": "system", "content": text_of(body.system, "system")}
        yield ChatTurn(message=message, where="system")
    for number, turn in enumerate(body.messages):
        where = f"messages[{number}]"
        if turn.role == "assistant":
            yield ChatTurn(message=_assistant(turn, f"{where}.content"), where=where)
        elif isinstance(turn.content, str):
            message = {"role": turn.role, "content": turn.content}
            yield ChatTurn(message=message, where=where)
        else:
            blocks = turn.content if sees_images else with_notes(turn.content)
            yield from _user(turn.role, blocks, where)


@contextlib.contextmanager
def in_places_of(body: CountRequest) -> Iterator[None]:
    """Report request errors of chat messages with the client's places. Raises: what the block
    raises"""
    try:
        yield
    except RequestError:
        with in_words_of(_places(body)):
            raise


def _places(body: CountRequest) -> dict[str, str]:
    """Return chat's places of messages and parts -> the client's."""
    places = {}
    for number, turn in enumerate(chat_turns(body, sees_images=True)):
        places[f"messages[{number}]"] = turn.where
        for part, where in enumerate(turn.parts):
            places[f"messages[{number}].content[{part}]"] = where
    return places


def _user(role: str, blocks: Sequence[Block], where: str) -> Iterator[ChatTurn]:
    """Yield tool results as separate turns, before the text sent with them."""
    parts: list[Part] = []
    places: list[str] = []
    for number, block in enumerate(blocks):
        at = f"{where}.content[{number}]"
        if block.type == "tool_result":
            content = result_of(block, at)
            message = {
                "role": "tool",
                "tool_call_id": block.tool_use_id or "",
                "content": content,
            }
            yield ChatTurn(message=message, where=at)
        else:
            parts += parts_of([block], f"{where}.content", start=number)
            places += [at] * (len(parts) - len(places))
    if parts or not blocks:
        message = {"role": role, "content": joined(parts)}
        yield ChatTurn(message=message, where=where, parts=places)


def _assistant(turn: Turn, where: str) -> dict[str, Any]:
    if isinstance(turn.content, str):
        return {"role": "assistant", "content": turn.content}
    texts, thoughts, calls = [], [], []
    for number, block in enumerate(turn.content):
        at = f"{where}[{number}]"
        if block.type == "thinking":
            thoughts.append(thought_of(block, at))
        elif block.type == "redacted_thinking":
            thoughts.append(sealed_thought(block) or "")
        elif block.type == "tool_use":
            calls.append(_call(block, at))
        elif not is_left_out(BLOCKS, block.type):
            texts.append(text_of_block(block, at))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thought for thought in thoughts if thought)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Block, where: str) -> dict[str, Any]:
    if not block.name:
        raise RequestError("must have a name.", where=where)
    return {"id": block.id or "", "function": {"name": block.name, "arguments": block.input}}
