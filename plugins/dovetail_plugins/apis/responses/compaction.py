"""Compaction: a summary in place of the assistant's turns, sealed, and read again.

A compaction item replaces the assistant's turns and the results of tools before it; the turns of
the user and the system stay as they are. The item has these turns too, for clients that leave out
what comes before it.
Source: the OpenAI API guide on compaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.json_values import json_value
from dovetail_plugins.apis._sealed import NotOurs, opened, sealed

Message = dict[str, Any]
SEALED_AS = "compaction"
HEAD = "Summary of the work so far in this conversation:\n\n"
"""What the turn with the summary begins with."""
SUMMARY_TOKENS = 4096
"""The most tokens of a summary, with the thinking before it."""
INSTRUCTION = (
    "Write a summary of this conversation. It will take the place of all your turns and of all "
    "results of tools; the user's own messages stay. Whoever reads it must be able to continue at "
    "once. Say what is wanted, what you have done and found out (with the names of files, the "
    "commands and the values that matter), what was decided and why, what is still open, and the "
    "next step. Answer with the summary alone, as plain text."
)
SYSTEM_ROLES = frozenset({"system", "developer"})


def summarized(messages: Sequence[Message], summary: str) -> list[Message]:
    """Return the lasting turns and the summary. If the user spoke last, that turn stays last."""
    return _placed(lasting(messages), summary, is_open=_is_open(messages))


def lasting(messages: Sequence[Message]) -> list[Message]:
    """Return the turns of the user and the system, without earlier summaries."""
    roles = {*SYSTEM_ROLES, "user"}
    return [one for one in messages if one["role"] in roles and not _is_summary(one)]


def seal_of(messages: Sequence[Message], summary: str) -> str:
    """Return a summary and the lasting turns as an item's `encrypted_content`."""
    found = {"summary": summary, "turns": lasting(messages), "is_open": _is_open(messages)}
    return sealed(json.dumps(found), SEALED_AS)


def content_of(seal: str) -> dict[str, Any] | None:
    """Return what `seal_of` put into an item's `encrypted_content`; None if another server did."""
    try:
        content: dict[str, Any] = json_value(opened(seal, SEALED_AS))
    except NotOurs:
        return None
    return content


def turns_of(found: Mapping[str, Any], earlier: Sequence[Message]) -> list[Message]:
    """Return the turns in place of `earlier` ones and an item with this content."""
    turns = lasting(earlier)
    if not any(one["role"] in SYSTEM_ROLES for one in turns):
        turns = [*(one for one in found["turns"] if one["role"] in SYSTEM_ROLES), *turns]
    if not any(one["role"] == "user" for one in turns):
        turns = [*turns, *(one for one in found["turns"] if one["role"] == "user")]
    return _placed(turns, found["summary"], is_open=found["is_open"])


def _placed(turns: list[Message], summary: str, *, is_open: bool) -> list[Message]:
    """Return turns with a summary after them; before the last one if the user waits for an answer
    to it."""
    place = len(turns) - 1 if is_open and turns and turns[-1]["role"] == "user" else len(turns)
    return [*turns[:place], {"role": "user", "content": HEAD + summary}, *turns[place:]]


def _is_open(messages: Sequence[Message]) -> bool:
    """Return whether the last turn is the user's."""
    return bool(messages) and messages[-1]["role"] == "user" and not _is_summary(messages[-1])


def _is_summary(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, str) and content.startswith(HEAD)
