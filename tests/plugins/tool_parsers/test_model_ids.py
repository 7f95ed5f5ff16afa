"""Ids that models give their calls: kept where the syntax has a place for them, each once."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import registry
from dovetail.server.generate.events import Collected, Session, SessionPlan
from support.cut_texts import cuts

LONG = '{"q": "' + "x" * 300 + '"}'


def _ids(name: str, text: str, *, is_cut: bool = False) -> list[str]:
    """Return the calls' ids, "" for those made here: the same wherever the text is cut."""
    parser: Any = registry.make(registry.choose("tool_parser", name))
    found = set()
    for pieces in cuts(text):
        session, answer = Session(SessionPlan(tool_parser=parser)), Collected()
        for piece in pieces:
            answer.add(session.feed(piece))
        answer.add(session.finish(is_cut=is_cut))
        assert len({call.call_id for call in answer.calls}) == len(answer.calls)
        ids = [call.call_id for call in answer.calls]
        assert all(len(call_id) == 9 for call_id in ids)
        found.add(tuple(call_id if call_id in text else "" for call_id in ids))
    assert len(found) == 1, found
    return list(found.pop())


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ('[{"name": "f", "arguments": {"a": 1}, "id": "abcdefgh1"}]', ["abcdefgh1"]),
        ('[{"id": "abcdefgh1", "name": "f", "arguments": {"a": 1}}]', ["abcdefgh1"]),
        ('[{"name": "f", "id": "abcdefgh1"}, {"name": "g", "arguments": {}, "id": "abcdefgh2"}]',
         ["abcdefgh1", "abcdefgh2"]),
        ('{"name": "f", "arguments": {"a": 1}, "id": "abcdefgh1"} so', ["abcdefgh1"]),
        ('[{"name": "f", "arguments": {"a": 1}, "id": "abcdefgh1"}', ["abcdefgh1"]),
        ('[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b": 2}}]', ["", ""]),
        ('[{"name": "f", "arguments": {"a": 1}, "id": "0"}]', [""]),
        ('[{"name": "f", "arguments": {"a": 1}, "id": null}]', [""]),
        ('[{"name": "f", "arguments": {"a": 1}, "id": "abcdefgh1"}, '
         '{"name": "f", "arguments": {"a": 2}, "id": "abcdefgh1"}]', ["abcdefgh1", ""]),
        (f'[{{"id": "abcdefgh1", "name": "f", "arguments": {LONG}}}]', ["abcdefgh1"]),
        (f'[{{"name": "f", "arguments": {LONG}, "id": "abcdefgh1"}}]', [""]),
        ("f[CALL_ID]abcdefgh1[ARGS]{}[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{}", ["abcdefgh1", ""]),
    ],
)  # fmt: skip
def test_mistrals_ids(text: str, ids: list[str]) -> None:
    assert _ids("mistral", f"[TOOL_CALLS]{text}") == ids


def test_a_call_that_waits_for_its_id_is_not_lost_where_the_answer_is_cut() -> None:
    assert _ids("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id"', is_cut=True)
