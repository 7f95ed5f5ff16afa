"""Ways to cut a text, and the event pipeline's result for it: the heart of the parser clauses."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from dovetail.interfaces.data.text import Layout, Markers, Sample, Tag, Tool, ToolCall
from dovetail.interfaces.tool_parser import ToolParser

NUM_RANDOM_CUTS = 40
MAX_TWO_WAY_CUTS = 400
ODD_LETTERS = ('"', "\\", "{", "}", "[", "]", ",", ":", "<", ">", ";", "\n", "\N{SNOWMAN}", "\x00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The result of reading an answer."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...] = field(default=())


def parse_in_pieces(
    pieces: list[str],
    *,
    tool_parser: ToolParser | None = None,
    reasoning: Markers | None = None,
    starts_inside: bool = False,
    tools: tuple[Tool, ...] = (),
    layout: Layout = (),
    is_cut: bool = False,
) -> Parsed:
    """Return the server pipeline's result for a text that comes in these pieces.

    `layout` is a reasoning parser's; the tool parser's own is known. `is_cut`: the text was cut
    off.
    """
    from dovetail.server.generate.events import Collected, Session, SessionPlan

    session = Session(
        SessionPlan(
            reasoning=reasoning,
            tool_parser=tool_parser,
            tools=tools,
            starts_inside=starts_inside,
            layout=(*layout, *(tool_parser.layout if tool_parser else ())),
        )
    )
    answer = Collected()
    for piece in pieces:
        answer.add(session.feed(piece))
    answer.add(session.finish(is_cut=is_cut))
    calls = tuple(ToolCall(name=c.name, arguments=c.arguments) for c in answer.calls)
    return Parsed(content=answer.content, reasoning=answer.reasoning, calls=calls)


def expected(sample: Sample) -> Parsed:
    """Return the result that a sample declares for its text."""
    return Parsed(content=sample.content, reasoning=sample.reasoning, calls=sample.calls)


def cuts(text: str, *, seed: int = 0) -> Iterator[list[str]]:
    """Yield the text cut into single characters, fixed sizes, every two parts, and at random."""
    for size in (1, 2, 3, 5, 12):
        yield [text[start : start + size] for start in range(0, len(text), size)]
    step = max(1, len(text) // MAX_TWO_WAY_CUTS)
    for at in range(0, len(text) + 1, step):
        yield [text[:at], text[at:]]
    yield from random_cuts(text, seed=seed, num=NUM_RANDOM_CUTS)


def random_cuts(text: str, *, seed: int, num: int) -> Iterator[list[str]]:
    """Yield the text cut at random, `num` times: in a few pieces, in many, or in letters."""
    chance = random.Random(seed)
    for _ in range(num):
        max_cuts = chance.choice((2, 8, 40, len(text) + 1))
        places = sorted(
            chance.randrange(len(text) + 1) for _ in range(chance.randrange(max_cuts) + 1)
        )
        yield [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def damaged(text: str, *, seed: int, num: int) -> Iterator[str]:
    """Yield the text `num` times with parts deleted, doubled, exchanged, or odd letters put in."""
    chance = random.Random(seed)
    for _ in range(num):
        damaged_text = text
        for _ in range(chance.randint(1, 3)):
            a, b = sorted(chance.randrange(len(damaged_text) + 1) for _ in range(2))
            b = min(b, a + chance.choice((1, 3, 30)))
            piece = chance.choice(
                ("", damaged_text[a:b] * 2, chance.choice(ODD_LETTERS), damaged_text[a:b][::-1])
            )
            damaged_text = damaged_text[:a] + piece + damaged_text[b:]
        yield damaged_text


def letters(text: str, layout: Layout = ()) -> str:
    """Return the text without blanks and a parser's layout: only these may be dropped."""
    words = [re.escape(word) for word in layout if isinstance(word, str)]
    words = sorted(words, key=len, reverse=True)
    words += [tag.pattern for tag in layout if isinstance(tag, Tag)]
    remaining = re.sub("|".join(words), "", text) if words else text
    return "".join(remaining.split())
