"""Limits of an answer that the engine does not know: a time, and the indentation of its lines.

Source: the API page of llama.cpp's server, `t_max_predict_ms` and `n_indent`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from dovetail.server.endpoint import Step

LIMIT = "limit"
"""The reason for which such an answer ends."""
_INDENTS = " \t"


@dataclass(slots=True, kw_only=True)
class IndentedText:
    """Text that ends before the first line, other than its own first one, with fewer than
    `min_indent` blanks at its start. The blanks at the start of a line are held until the line is
    known to stay."""

    min_indent: int
    held: str = ""
    has_line: bool = False
    is_over: bool = False
    _starts_line: bool = False

    def feed(self, text: str) -> str:
        """Return the text that stays. Mutates: self"""
        pieces: list[str] = []
        for char in text:
            is_short = self._starts_line and len(self.held) < self.min_indent
            if is_short and char in _INDENTS:
                self.held += char
                continue
            if is_short:
                self.is_over = True
                self.held = ""
                break
            pieces.append(self.rest() + char)
            self._starts_line = char == "\n"
            self.has_line |= self._starts_line
        return "".join(pieces)

    def rest(self) -> str:
        """Return the blanks that are held. Mutates: self"""
        held, self.held = self.held, ""
        return held


async def limited(
    steps: AsyncGenerator[Step, None], *, min_indent: int, max_ms: float
) -> AsyncGenerator[Step, None]:
    """Yield the steps of one answer until a limit ends it; closing this closes them.

    `min_indent`: blanks at the start of each line but the first. `max_ms` (0 or less: none): how
    long after the first token the answer may take, once it has a line end.
    """
    text, first_s = IndentedText(min_indent=min_indent), 0.0
    async with aclosing(steps):
        async for step in steps:
            first_s = first_s or time.monotonic()
            new_text = text.feed(step.text)
            is_late = 0 < max_ms < 1e3 * (time.monotonic() - first_s) and text.has_line
            is_last = step.finish_reason is not None
            if is_last or is_late:
                new_text += text.rest()
            if text.is_over or (is_late and not is_last):
                yield replace(step, text=new_text, finish_reason=LIMIT, stop_reason=None)
                return
            yield replace(step, text=new_text)
