"""Server-sent events, cut anywhere."""

from __future__ import annotations

import pytest

from dovetail_plugins.http_client.events import EventReader

STREAM = (
    b": a comment\n\nevent: x\r\ndata: one\r\n\r\ndata:two\ndata:  lines\nid: 3\n\n"
    b"data: \xe2\x82\xac\n\nretry: 1\n\ndata: never ended\n"
)
DATA = [b"one", b"two\n lines", b"\xe2\x82\xac"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_the_same_however_their_bytes_are_cut(size: int) -> None:
    reader = EventReader()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [data for piece in pieces for data in reader.feed(piece)] == DATA
