"""System turns within a conversation, for chat templates that take one at its start only.

Claude Code sends what it learns on the way as turns of the system. If a template refuses them, they
are shown as text of the user, in the form that it uses itself where a service has no such turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dovetail.errors import RequestError
from dovetail.server.endpoint import is_left_out
from dovetail_plugins.apis.messages.content import text_of
from dovetail_plugins.apis.messages.protocol import Block, CountRequest, Turn
from dovetail_plugins.apis.messages.words import BLOCKS

REFUSED = "chat_template_refused"
"""The code of the error that a template itself raises."""
Result = TypeVar("Result")


async def with_readable_turns(
    body: CountRequest, work: Callable[[CountRequest], Awaitable[Result]]
) -> Result:
    """Return what `work` makes of a body, or of one with its system turns shown as the user's if
    the chat template refuses it. Raises: what `work` raises"""
    try:
        return await work(body)
    except RequestError as error:
        if error.code != REFUSED or not _has_later_system(body):
            raise
    return await work(body.model_copy(update={"messages": _as_users(body)}))


def _has_later_system(body: CountRequest) -> bool:
    later = body.messages if body.system else body.messages[1:]
    return any(turn.role == "system" for turn in later)


def _as_users(body: CountRequest) -> list[Turn]:
    """Return the turns, each later one of the system joined to the user's before it, if any."""
    turns: list[Turn] = []
    for number, turn in enumerate(body.messages):
        if turn.role != "system" or (number == 0 and not body.system):
            turns.append(turn)
            continue
        note = _note(turn, f"messages[{number}].content")
        if turns and turns[-1].role == "user":
            note = [*_blocks(turns.pop()), *note]
        turns.append(Turn(role="user", content=note))
    return turns


def _note(turn: Turn, where: str) -> list[Block]:
    shown = [block for block in _blocks(turn) if not is_left_out(BLOCKS, block.type)]
    text = f"<system-reminder>\n{text_of(shown, where)}\n</system-reminder>"
    return [Block(type="text", text=text)]


def _blocks(turn: Turn) -> list[Block]:
    if isinstance(turn.content, str):
        return [Block(type="text", text=turn.content)]
    return turn.content
