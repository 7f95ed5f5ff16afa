"""Token streams: text as it becomes final, equal in sum to one decode of everything.

ByteLevelStream joins bytes, in constant time per token. WindowStream decodes a short window again
for every piece, for decoders whose text depends on neighbours.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

BROKEN = "\ufffd"
CONTEXT_TOKENS = 6
MAX_HELD_TOKENS = 8
"""A character has at most 4 bytes; text still broken after this many tokens is broken for good."""

Decode = Callable[[Sequence[int]], str]


class ByteLevelStream:
    """Bytes of tokens joined; an unfinished character waits for its other bytes.

    `token_bytes` gives a token's bytes (none for a token that is left out).
    """

    def __init__(self, token_bytes: Callable[[int], bytes], prompt_ids: Sequence[int]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Only a character that the prompt leaves unfinished matters: at most its last 3 bytes.
        tail = b""
        for token_id in reversed(prompt_ids):
            tail = token_bytes(token_id) + tail
            if len(tail) >= 4:
                break
        self._decoder.decode(tail)

    def push(self, token_id: int) -> str:
        """Return the text that this token completes."""
        return self._decoder.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        """Return U+FFFD for an unfinished character, else ""."""
        return self._decoder.decode(b"", final=True)


class WindowStream:
    """The difference between the decoded window before and after.

    `is_open(token_id)` says that a token's text may change with the next one (a byte token);
    `is_left_out` that the token has no text. With `waits_for_whole` text that ends in U+FFFD
    waits as well, for a few tokens.
    """

    def __init__(
        self,
        decode: Decode,
        prompt_ids: Sequence[int],
        *,
        is_open: Callable[[int], bool],
        is_left_out: Callable[[int], bool],
        waits_for_whole: bool,
    ) -> None:
        self._decode = decode
        self._is_open = is_open
        self._waits_for_whole = waits_for_whole
        self._window = _context(prompt_ids, decode, is_open, is_left_out)
        self._sent = decode(self._window)
        if waits_for_whole or (self._window and is_open(self._window[-1])):
            self._sent = self._sent.rstrip(BROKEN)
        self._held = 0

    def push(self, token_id: int) -> str:
        """Return the text that this token makes final."""
        self._window.append(token_id)
        self._held += 1
        if self._is_open(token_id):
            return ""
        text = self._decode(self._window)
        is_broken = self._waits_for_whole and text.endswith(BROKEN)
        if is_broken and self._held < MAX_HELD_TOKENS:
            return ""
        return self._take(text)

    def flush(self) -> str:
        """Return the text that is still buffered."""
        return self._take(self._decode(self._window)) if self._held else ""

    def _take(self, text: str) -> str:
        """Return what `text` adds to the text sent before, and let the window begin at the tokens
        that added it."""
        added = text[len(self._sent) :]
        if not added:
            return ""
        # The tokens that gave this text are the next window's context.
        self._window = self._window[-self._held :]
        self._held = 0
        self._sent = self._decode(self._window)
        return added


def _context(
    prompt_ids: Sequence[int],
    decode: Decode,
    is_open: Callable[[int], bool],
    is_left_out: Callable[[int], bool],
) -> list[int]:
    """Return the prompt's end: enough tokens with text, never from inside a character."""
    seen = 0
    for start in range(len(prompt_ids) - 1, -1, -1):
        token_id = prompt_ids[start]
        seen += not is_left_out(token_id)
        if seen < CONTEXT_TOKENS or is_open(token_id) or is_left_out(token_id):
            continue
        window = list(prompt_ids[start:])
        if seen > 2 * MAX_HELD_TOKENS or not decode(window).startswith(BROKEN):
            return window
    return list(prompt_ids)
