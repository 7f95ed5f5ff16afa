"""Forms of every registered tool parser, compiled by a grammar library we did not write: it takes
the text of calls, special tokens and all, and takes no text with arguments of another type."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from dovetail.interfaces.form import Choice, Form
from dovetail.interfaces.guided import Vocabulary
from dovetail.interfaces.text import Tool
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.testing.forms import example
from dovetail.testing.hostile import registered

pytest.importorskip("llguidance")

PARSERS = {name: made for name, made in registered() if "has_form" in made.capabilities}
SCHEMA = MappingProxyType(
    {
        "type": "object",
        "properties": {"text": {"type": "string"}, "number": {"type": "integer"}},
        "required": ["text", "number"],
    }
)
TOOL = Tool(name="find_it", parameters=dict(SCHEMA))


def vocabulary(parser: ToolParser) -> Vocabulary:
    """Return bytes as tokens, and the parser's tags as special tokens."""
    texts = {text for m in parser.markers for text in (m.start, m.end)} | set(parser.inner)
    special = sorted({text for text in texts if text.startswith(("<", "[TOOL"))} | {"<eos>"})
    ids = {text: 256 + number for number, text in enumerate(special)}
    return Vocabulary(
        tokens=[bytes([i]) for i in range(256)] + [b""] * len(special),
        special=ids,
        eos_ids=(ids["<eos>"],),
        special_ids=frozenset(ids.values()),
        size=256 + len(special),
    )


def accepted(parser: ToolParser, form: Form, text: str) -> int:
    """Return how many characters of the text the form takes."""
    from dovetail_plugins.guided_decoding.guidance import Guidance

    words = vocabulary(parser)
    backend = Guidance(Guidance.Options(), words)
    matcher = backend.load(backend.compile(form)).matcher()
    longest = sorted(words.special, key=len, reverse=True)
    at = 0
    while at < len(text):
        tag = next((tag for tag in longest if text.startswith(tag, at)), None)
        ids = [words.special[tag]] if tag else list(text[at].encode())
        if not all(matcher.accept(i) for i in ids):
            return at
        at += len(tag or text[at])
    return at


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS.keys())
@pytest.mark.parametrize("most", [1, 3, None])
def test_a_grammar_library_takes_calls_and_nothing_else(
    parser: ToolParser, most: int | None
) -> None:
    call, other = parser.form(TOOL), parser.form(Tool(name="other"))
    assert call is not None
    assert other is not None
    form = parser.forms(Choice((call, other)), most)
    right = example(parser.forms(call, most), {"text": 'say "no"', "number": 3})
    assert accepted(parser, form, right) == len(right)
    for wrong in (right.replace("find_it", "find_at"), right.replace("number", "figure")):
        assert accepted(parser, form, wrong) < len(wrong)
