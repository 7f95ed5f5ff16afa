"""Thinking in answers and in earlier turns: signed by this server, and checked when it comes back.

A signature proves that the thought is this server's. If the client asked not to see thoughts, the
signature holds the thought itself, sealed, so that it comes back all the same.
"""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail_plugins.apis._sealed import NotOurs, is_signature, opened, sealed, signature
from dovetail_plugins.apis.messages.protocol import Block

PURPOSE = "thinking"


def signature_of(thought: str, *, is_shown: bool) -> str:
    """Return the signature of a thinking block."""
    return signature(thought, PURPOSE) if is_shown else sealed(thought, PURPOSE)


def thought_of(block: Block, where: str) -> str:
    """Return the text of an earlier turn's thinking block. A block without a signature is accepted.
    Raises: RequestError for a signature of another server, or of another text"""
    thought, given = block.thinking or "", block.signature
    if not given or is_signature(given, thought, PURPOSE):
        return thought
    found = None if thought else _opened(given)
    if found is None:
        raise RequestError(
            "this server did not make this signature for this text.",
            where=f"{where}.signature",
            fix="send the block as it came, or leave the signature out.",
            code="invalid_signature",
        )
    return found


def sealed_thought(block: Block) -> str | None:
    """Return the thought of a redacted_thinking block; None if this server did not seal it."""
    return _opened(block.data) if block.data else None


def _opened(seal: str) -> str | None:
    try:
        return opened(seal, PURPOSE)
    except NotOurs:
        return None
