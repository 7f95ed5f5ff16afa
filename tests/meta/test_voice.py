"""Docstrings and comments are in plain English: few of the words that only this project used so."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKERS = re.compile(
    r"\b(?:told|of which|of whose|those of|beside|so many|whoever|ones that|kept|asked|behind"
    r"|lies|lie|stands|stand)\b",
    re.IGNORECASE,
)
"""Words that have a plainer one nearly everywhere; a few are right: a file is kept."""
WHERE = re.compile(r"\bwhere\b", re.IGNORECASE)
PARTS = ("core", "plugins", "kernels")
MAX_PER_THOUSAND = {"docstrings": 5.0, "comments": 6.0}


def docstrings_of(tree: ast.AST) -> Iterator[str]:
    """Yield the texts that stand alone: docstrings, and what is said below an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for line in body if isinstance(body, list) else ():
            match line:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield text


def comments_of(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def markers_per_thousand(texts: list[str], *patterns: re.Pattern[str]) -> float:
    """Return how many of the words are markers, of 1,000."""
    words = sum(len(text.split()) for text in texts)
    markers = sum(len(pattern.findall(text)) for text in texts for pattern in patterns)
    return 1000 * markers / max(1, words)


@pytest.mark.parametrize("part", PARTS)
def test_docstrings_are_plain(part: str) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / part).rglob("*.py")]
    texts = [text for source in sources for text in docstrings_of(ast.parse(source))]
    assert len(texts) > 500
    assert markers_per_thousand(texts, MARKERS, WHERE) < MAX_PER_THOUSAND["docstrings"]


@pytest.mark.parametrize("part", PARTS)
def test_comments_are_plain(part: str) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / part).rglob("*.py")]
    texts = [text for source in sources for text in comments_of(source)]
    assert len(texts) > 50
    assert markers_per_thousand(texts, MARKERS) < MAX_PER_THOUSAND["comments"]


def test_markers_are_found() -> None:
    texts = list(docstrings_of(ast.parse('"""What is told of those of whoever stands beside."""')))
    assert markers_per_thousand(texts, MARKERS) > 500
    assert markers_per_thousand(["Return the number of rows of a batch."], MARKERS, WHERE) == 0
