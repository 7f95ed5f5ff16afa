"""Finds the control words in a rendered conversation that are client text, not the renderer's.

A control word is the text of a special token, or of another added token that the renderer writes.
The conversation is rendered a second time with a stand-in for every character of client text that
could begin a control word. If the second rendering, with the stand-ins reversed, equals the first,
each control word that begins with a stand-in came from a client. Templates may trim, split, join
and repeat the text; texts that they look for (`</think>` in an earlier answer) stay visible.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.renderer import Reads, RendererInput, SpelledArguments

Span = tuple[int, int]
FIRST_STAND_IN = 0xE000
LAST_STAND_IN = 0xF8FF
"""The private use area. Stand-ins are its characters that occur nowhere else."""

MIN_CHARS = 3
FIX = (
    "remove it from the text, or start the server with --allow-control-tokens, which lets clients "
    "write control tokens."
)


class ControlWords:
    """The control words of one renderer."""

    def __init__(
        self,
        special: Iterable[str],
        added: Iterable[str],
        reads: Reads,
    ) -> None:
        self._special = {word for word in special if word.strip()}
        written = {word for word in added if _is_marker(word) and word in reads.writes}
        self._special |= {word for word in written if word in reads.structure}
        words = self._special | written
        self._any = _pattern(words)
        self._unsafe = _pattern(self._special)
        starts = "".join(sorted({word[0] for word in words}))
        self._starts = starts
        self._start = re.compile(f"[{re.escape(starts)}]") if starts else None
        visible = {text.strip() for text in reads.looks_for if _is_marker(text.strip())}
        self._replaceable = {
            "assistant": _begins(starts, visible | written, self._special),
            "assistant's own": _begins(starts, visible | written, self._special - visible),
            "others": _begins(starts, visible, self._special),
            "none": self._start,
        }

    def from_clients(
        self, render: Callable[[RendererInput], str], given: RendererInput, prompt: str
    ) -> tuple[Span, ...]:
        """Return the spans of clients' control words in the prompt that `render` made.

        Raises: RequestError if the renderer changes the text so that they cannot be found, and the
        text contains the text of a special token
        """
        try:
            return self._found(render, given, prompt)
        except RecursionError:
            raise RequestError("is nested too deep.", where="messages") from None

    def _found(
        self, render: Callable[[RendererInput], str], given: RendererInput, prompt: str
    ) -> tuple[Span, ...]:
        if self._start is None or not any(map(self._start.search, _client_texts(given))):
            return ()
        stand_ins = self._stand_ins([prompt, *_client_texts(given)])
        back = str.maketrans({stand_in: start for start, stand_in in stand_ins.items()})
        for assistant, others in (("assistant", "none"), ("assistant's own", "others")):
            shown = _try(render, self._replaced(given, stand_ins, assistant, others))
            if shown is not None and shown.translate(back) == prompt:
                marks = frozenset(stand_ins.values())
                return tuple(
                    match.span()
                    for match in self._any.finditer(prompt)
                    if shown[match.start()] in marks
                )
        self._refuse(given)
        return ()

    def _stand_ins(self, texts: Sequence[str]) -> dict[str, str]:
        """Return an unused stand-in character for each start character."""
        free = (chr(code) for code in range(FIRST_STAND_IN, LAST_STAND_IN))
        unused = (char for char in free if not any(char in text for text in texts))
        return dict(zip(self._starts, unused, strict=False))

    def _replaced(
        self,
        given: RendererInput,
        stand_ins: Mapping[str, str],
        assistant: str,
        others: str,
    ) -> RendererInput:
        """Return the input with stand-ins in all client text."""

        def replace(value: Any, kind: str) -> Any:
            pattern = self._replaceable[kind]
            if isinstance(value, str) and pattern is not None:
                return pattern.sub(lambda match: stand_ins[match[0]], value)
            if isinstance(value, SpelledArguments):
                return SpelledArguments(replace(dict(value), kind), replace(value.text, kind))
            if isinstance(value, dict):
                return {replace(k, kind): replace(v, kind) for k, v in value.items()}
            if isinstance(value, list | tuple):
                return [replace(part, kind) for part in value]
            return value

        return dataclasses.replace(
            given,
            messages=[
                replace(turn, assistant if turn["role"] == "assistant" else others)
                for turn in given.messages
            ],
            **{
                name: replace(getattr(given, name), others)
                for name in ("tools", "documents", "variables")
            },
        )

    def _refuse(self, given: RendererInput) -> None:
        """Raise RequestError if client text contains the text of a special token."""
        for part, where in _parts(given):
            for text in _texts(part):
                if match := self._unsafe.search(text):
                    raise RequestError(
                        f'the text holds the control token "{match[0]}", and the chat template '
                        "changes the text so that it cannot be told apart from its own words.",
                        where=where,
                        fix=FIX,
                        code="control_token_in_text",
                    )


def _is_marker(word: str) -> bool:
    return len(word) >= MIN_CHARS and not word[0].isalnum() and bool(word.strip())


def _pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the words, longest first; without words it matches nothing."""
    ordered = sorted(words, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


def _begins(starts: str, visible: Iterable[str], hidden: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern of the start characters. It does not match at the start of a `visible` text,
    unless a `hidden` one starts there."""
    if not starts:
        return None
    shown, covered = _pattern(visible).pattern, _pattern(hidden).pattern
    return re.compile(f"(?={covered}|(?!{shown}))[{re.escape(starts)}]")


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, including names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _texts(name)
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _client_texts(given: RendererInput) -> Iterator[str]:
    for part, _ in _parts(given):
        yield from _texts(part)


def _parts(given: RendererInput) -> Iterator[tuple[Any, str]]:
    """Yield the parts of the input, each with its place in the request."""
    for name in ("messages", "tools", "documents"):
        yield from ((part, f"{name}[{i}]") for i, part in enumerate(getattr(given, name)))
    for name, value in given.variables.items():
        yield value, f"chat_template_kwargs.{name}"


def _try(render: Callable[[RendererInput], str], given: RendererInput) -> str | None:
    """Return a rendering; None if the renderer refuses the input."""
    try:
        return render(given)
    except RequestError:
        return None
