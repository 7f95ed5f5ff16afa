"""How much work one rendering may do. A template is code out of a model folder, so it is counted.

Knows no jinja: `sandbox` calls it at every loop turn, every call and every piece of text built.
"""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from typing import Any

from dovetail.errors import RequestError

MAX_CHARS = 8_000_000
MAX_CHARS_IN_ALL = 64_000_000
MAX_ITEMS = 1_000_000
MAX_TICKS = 1_000_000
MAX_SECONDS = 1.0
MAX_RANGE = 100_000
MAX_PAD = 10_000
MAX_INT_BITS = 256
_TICKS_PER_LOOK = 16
_WIDE_FIELD = re.compile(r"\d{5,}|\*")


class TemplateLimit(RequestError):
    """A rendering went over one of its limits."""

    def __init__(self, what: str) -> None:
        super().__init__(
            what,
            where="messages",
            fix="use another chat template (--chat-template FILE) or shorter messages.",
            code="chat_template_limit",
        )


class Budget:
    """The work one rendering has done so far. Ticks are loop turns and calls; seconds are the
    thread's own CPU time, so a busy machine refuses no request."""

    __slots__ = ("_chars", "_deadline_s", "_ticks")

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self._deadline_s = time.thread_time() + seconds
        self._ticks = 0
        self._chars = 0

    def charge(self, num_chars: int) -> None:
        """Count text that was built, kept or not. Raises: TemplateLimit"""
        self._chars += num_chars
        if self._chars > MAX_CHARS_IN_ALL:
            raise TemplateLimit(
                f"the chat template builds more than {MAX_CHARS_IN_ALL} characters."
            )

    def tick(self) -> None:
        """Count one loop turn or call. Raises: TemplateLimit"""
        self._ticks += 1
        if self._ticks % _TICKS_PER_LOOK:
            return
        if self._ticks > MAX_TICKS:
            raise TemplateLimit(f"the chat template looped more than {MAX_TICKS} times.")
        if time.thread_time() > self._deadline_s:
            raise TemplateLimit(f"the chat template ran longer than {MAX_SECONDS:g} s.")


BUDGET: ContextVar[Budget] = ContextVar("template_budget")
"""Set for the time of one rendering or compilation."""


def tick() -> None:
    """Count one step of the running rendering. Raises: TemplateLimit"""
    BUDGET.get().tick()


def check_size(size: int) -> None:
    """Raise TemplateLimit when a text would become longer than MAX_CHARS, or all together."""
    if size > MAX_CHARS:
        raise TemplateLimit(f"the chat template builds more than {MAX_CHARS} characters.")
    BUDGET.get().charge(size)


def check_items(size: int) -> None:
    """Raise TemplateLimit when a list would become longer than MAX_ITEMS."""
    if size > MAX_ITEMS:
        raise TemplateLimit(f"the chat template builds a list of more than {MAX_ITEMS} items.")
    BUDGET.get().charge(size)


def check_pad(*values: Any) -> None:
    """Raise TemplateLimit when a number given to a filter or text method is a huge width."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_PAD:
            raise TemplateLimit(f"the chat template uses a width above {MAX_PAD}.")


def check_format(text: str) -> None:
    """Raise TemplateLimit when a format string asks for a huge or computed width."""
    if _WIDE_FIELD.search(text):
        raise TemplateLimit("the chat template formats with a huge width.")


def joined_size(separator: str, parts: list[Any]) -> int:
    """Return the characters of a join."""
    return len(separator) * len(parts) + sum(len(p) for p in parts if isinstance(p, str))


def replaced_size(text: str, old: str, new: str) -> int:
    """Return an upper bound of the characters of a replacement."""
    return len(text) + text.count(old) * len(new)
