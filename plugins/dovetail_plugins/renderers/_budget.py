"""Work limits of one rendering. A template is code from a model folder, so its work is counted.

It does not depend on jinja: `sandbox` calls it for every loop iteration, call and built text.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping
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
MAX_DEPTH = 500
CONTAINERS = (list, tuple, set, frozenset, Mapping)
_TICKS_PER_LOOK = 16
_WIDE_FIELD = re.compile(r"\d{5,}|\*")
_COMPUTED_WIDTH = re.compile(r"\{[^{}]*:[^{}]*\{")


class TemplateLimit(RequestError):
    """A rendering exceeded one of its limits."""

    def __init__(self, what: str) -> None:
        super().__init__(
            what,
            where="messages",
            fix="use another chat template (--chat-template FILE) or shorter messages.",
            code="chat_template_limit",
        )


class Budget:
    """The work of one rendering so far. Ticks are loop iterations and calls. Seconds are the
    thread's own CPU time, so a busy machine refuses no request."""

    __slots__ = ("_chars", "_deadline_s", "_ticks")

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self._deadline_s = time.thread_time() + seconds
        self._ticks = 0
        self._chars = 0

    def charge(self, num_chars: int) -> None:
        """Count text that was built, used or not. Raises: TemplateLimit"""
        self._chars += num_chars
        if self._chars > MAX_CHARS_IN_ALL:
            raise TemplateLimit(
                f"the chat template builds more than {MAX_CHARS_IN_ALL} characters."
            )

    def tick(self) -> None:
        """Count one loop iteration or call. Raises: TemplateLimit"""
        self._ticks += 1
        if self._ticks % _TICKS_PER_LOOK:
            return
        if self._ticks > MAX_TICKS:
            raise TemplateLimit(f"the chat template looped more than {MAX_TICKS} times.")
        if time.thread_time() > self._deadline_s:
            raise TemplateLimit(f"the chat template ran longer than {MAX_SECONDS:g} s.")


BUDGET: ContextVar[Budget] = ContextVar("template_budget")
"""Set during one rendering or compilation."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Give what runs within a budget of its own."""
    token = BUDGET.set(Budget())
    try:
        yield
    finally:
        BUDGET.reset(token)


@contextlib.contextmanager
def as_request_error() -> Iterator[None]:
    """Report what a template raises as the error of a request. Raises: RequestError"""
    try:
        yield
    except RequestError:
        raise
    except RecursionError as error:
        raise TemplateLimit("the chat template recurses too deep.") from error
    except MemoryError as error:
        raise TemplateLimit("the chat template needs too much memory.") from error
    except Exception as error:
        raise RequestError(
            f"the chat template failed: {type(error).__name__}: {error}",
            where="messages",
            fix="check the order and the fields of the messages, or pass --chat-template FILE.",
            code="chat_template_error",
        ) from error


def tick() -> None:
    """Count one step of the running rendering. Raises: TemplateLimit"""
    BUDGET.get().tick()


def check_size(size: int) -> None:
    """Raise TemplateLimit if a text would exceed MAX_CHARS, or all texts MAX_CHARS_IN_ALL."""
    if size > MAX_CHARS:
        raise TemplateLimit(f"the chat template builds more than {MAX_CHARS} characters.")
    BUDGET.get().charge(size)


def check_items(size: int) -> None:
    """Raise TemplateLimit if a list would exceed MAX_ITEMS."""
    if size > MAX_ITEMS:
        raise TemplateLimit(f"the chat template builds a list of more than {MAX_ITEMS} items.")
    BUDGET.get().charge(size)


def check_written(*values: Any) -> None:
    """Raise TemplateLimit if values would be huge when written out or compared.

    A list may contain another many times without taking memory: three short steps build a thousand
    times a thousand times a thousand items, which one native call takes hours to write.
    """
    if _total_size(values) > MAX_CHARS:
        raise TemplateLimit(f"the chat template writes more than {MAX_CHARS} characters at once.")


def written_size(value: Any) -> int:
    """Return the approximate number of characters of a value when written out."""
    return _total_size((value,))


def _total_size(values: Iterable[Any]) -> int:
    """Return the sum of the sizes, visiting each list or mapping once."""
    known: dict[int, int] = {}
    return sum(
        _written_size(value, known, 0) if isinstance(value, CONTAINERS) else _plain_size(value)
        for value in values
    )


def _plain_size(value: Any) -> int:
    return len(value) if isinstance(value, str) else 1


def _written_size(value: Any, known: dict[int, int], depth: int) -> int:
    """Return the size of a list or mapping, visiting each part once. Mutates: known"""
    if id(value) in known:
        return known[id(value)]
    if depth > MAX_DEPTH:
        raise TemplateLimit(f"the chat template nests lists more than {MAX_DEPTH} deep.")
    parts = (*value, *value.values()) if isinstance(value, Mapping) else value
    size = 2
    for part in parts:
        if isinstance(part, CONTAINERS):
            size += _written_size(part, known, depth + 1)
        else:
            size += _plain_size(part)
    known[id(value)] = size
    return size


def check_pad(*values: Any) -> None:
    """Raise TemplateLimit if a number passed to a filter or text method is a huge width."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_PAD:
            raise TemplateLimit(f"the chat template uses a width above {MAX_PAD}.")


def check_format(text: str) -> None:
    """Raise TemplateLimit if a format string has a huge or computed width."""
    if _WIDE_FIELD.search(text) or _COMPUTED_WIDTH.search(text.replace("{{", "")):
        raise TemplateLimit("the chat template formats with a huge width.")


def joined_size(separator: str, parts: list[Any]) -> int:
    """Return the number of characters of a join."""
    return len(separator) * len(parts) + _total_size(parts)


def formatted_size(text: str, mark: str, values: Any) -> int:
    """Return an upper bound for the characters of a formatted text. Each field has a mark, and may
    show any of the values."""
    is_one_each = mark == "%" and isinstance(values, tuple)
    return len(text) + written_size(values) * (1 if is_one_each else text.count(mark))


def replaced_size(text: str, old: str, new: str) -> int:
    """Return an upper bound for the characters of a replacement."""
    return len(text) + text.count(old) * len(new)
