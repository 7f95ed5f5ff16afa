"""Cohere's citations: the reader sees the cited text, whole or streamed, and no mark around it."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import registry
from dovetail.server.generate.events import Collected, Session, SessionPlan
from dovetail.server.generate.tools.tool_choice import layout_in_use, texts_in_use
from support.cut_texts import cuts

REASONING: Any = registry.make(registry.choose("reasoning_parser", "cohere_command3"))
TOOLS: Any = registry.make(registry.choose("tool_parser", "cohere_command3"))
THINKING = "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>"


def _plan(parser: Any = None, **more: Any) -> SessionPlan:
    return SessionPlan(
        reasoning=REASONING.markers,
        tool_parser=parser,
        layout=layout_in_use(parser, REASONING),
        **more,
    )


def _said(text: str, plan: SessionPlan, *, is_cut: bool = False) -> str:
    """Return the content, which must be the same wherever the text is cut."""
    said = set()
    for pieces in cuts(text):
        session, answer = Session(plan), Collected()
        for piece in pieces:
            answer.add(session.feed(piece))
        answer.add(session.finish(is_cut=is_cut))
        said.add(answer.content)
    assert len(said) == 1, said
    return said.pop()


@pytest.mark.parametrize("parser", [None, TOOLS])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<co>Paris</co: 0:[1,2]> is big.", "Paris is big."),
        ("It is <co>2</co: 0:[0],1:[2,3]>.\n<co>Yes</co: 10:[11]>!", "It is 2.\nYes!"),
        ("A <co: 0,1>b</co: 0,1> c", "A b c"),
        ("<co><co>a</co: 0:[0]> b</co: 1:[0]>", "a b"),
        ("a <c<co>b</co: 0:[0]>", "a <cb"),
        ("x <color> y </col> <co-op> <co 1", "x <color> y </col> <co-op> <co 1"),
        ("if a <co then", "if a <co then"),
        ("</co: " + "1" * 80 + ">", "</co: " + "1" * 80 + ">"),
    ],
)
def test_citations_are_not_content(parser: Any, text: str, content: str) -> None:
    for before in ("", THINKING):
        assert _said(f"{before}{text}", _plan(parser)) == content


def test_a_citation_that_is_cut_off_is_not_shown() -> None:
    for tail in ("</co: 0:[", "</co", "<co"):
        assert _said(f"It is <co>2{tail}", _plan(), is_cut=True) == "It is 2"


def test_citations_next_to_calls_and_stop_strings() -> None:
    call = '<|START_ACTION|>[{"tool_name": "f", "parameters": {"q": "<co>a</co: 0:[0]>"}}]'
    session, answer = Session(_plan(TOOLS)), Collected()
    answer.add(session.feed(f"<co>See</co: 0:[0]> {call}<|END_ACTION|>"))
    answer.add(session.finish())
    assert answer.content == "See"
    assert answer.calls[0].arguments == '{"q": "<co>a</co: 0:[0]>"}'
    assert _said("a <co>b</co: 0:[0]> c d", _plan(stops=("b c",))) == "a "


def test_special_tokens_of_a_tag_are_seen() -> None:
    assert {"<co", "</co"} <= texts_in_use(_plan())
