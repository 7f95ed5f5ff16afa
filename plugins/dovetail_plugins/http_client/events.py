"""Server-sent events: the data of each, however the bytes are cut.

Source: WHATWG HTML, section 9.2; lines end with LF or CRLF.
"""

from __future__ import annotations


class EventReader:
    """Reads a stream of events. One without a final blank line is dropped, as the standard says."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that this piece completes. Mutates: self"""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
