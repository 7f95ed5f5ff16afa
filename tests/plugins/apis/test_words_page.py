"""The page of the APIs lists every word of the tables, with what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.server.generate.body.chat import TOOLS
from dovetail.server.generate.body.words import Words
from dovetail_plugins.apis.messages import words as messages
from dovetail_plugins.apis.responses import words as responses

PAGE = Path(__file__).parents[3] / "docs" / "how_to" / "use_the_apis.md"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("chat, tools", TOOLS),
        ("responses, tools", responses.TOOLS),
        ("responses, items", responses.ITEMS),
        ("responses, parts", responses.PARTS),
        ("messages, tools", messages.TOOLS),
        ("messages, blocks", messages.BLOCKS),
    ],
)
def test_the_page_lists_every_word(where: str, words: Words) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith(f"| {where} |")]
    for name, word in words.items():
        (row,) = [row for row in rows if f"`{name}`" in row.split("|")[2]]
        assert row.endswith(f"| {word.how} | {word.what} |")
    assert sum(row.split("|")[2].count("`") for row in rows) == 2 * len(words)
