"""Drafter: guesses the next tokens of a request, so that one forward pass can verify several.

A drafter of this kind knows token ids alone and is asked by the engine between two steps; the
model draws at every guessed position as it would have without, so guesses change speed and never
tokens. Source: Leviathan et al., "Fast inference from transformers via speculative decoding", 2023.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.spec import ModelSpec


class Drafter(Plugin):
    """One object per engine, called by one thread; a call should take microseconds.

    Core decides how often and for how many tokens a request is asked, by how many of its guesses
    came true. A drafter that raises, or names an id outside the vocabulary, is not asked again for
    that request; nothing else comes of it. Its Options are the further keys of
    `--speculative-config`.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "remembers": "learns from requests that ended, so that later ones may be drafted otherwise",
    }

    @abstractmethod
    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        """Prepare to guess at most `max_draft_tokens` tokens at a time for this model."""

    @abstractmethod
    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return up to `max_tokens` (at least 1) guesses of what follows `token_ids`, or none.

        `token_ids`, prompt and drawn tokens, begins with what it held in the request's previous
        call; it may have grown by any number of tokens. It is the engine's own: copy, never change.
        """

    @abstractmethod
    def forget(self, request_id: str) -> None:
        """Drop what is kept of a request, but for what "remembers" learns of it; unknown ones are
        ignored."""
