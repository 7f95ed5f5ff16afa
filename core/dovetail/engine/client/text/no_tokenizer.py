"""NoTokenizer: replaces the tokenizer under --skip-tokenizer-init.

Prompts and answers are token ids; a request that needs text fails. Reads no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer, TokenizerFacts


@dataclass(slots=True, kw_only=True)
class NoFacts:
    """Empty tokenizer facts: no special tokens and no template."""

    vocab_size: int = 0
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)
    special_ids: frozenset[int] = frozenset()
    special_texts: dict[int, str] = field(default_factory=dict)
    chat_template: str | None = None
    chat_templates: dict[str, str] = field(default_factory=dict)
    max_tokens: int | None = None


class SilentStream:
    """The text stream of a server without a tokenizer: always empty."""

    __slots__ = ()

    def push(self, token_id: int) -> str:
        """Return nothing."""
        return ""

    def flush(self) -> str:
        """Return nothing."""
        return ""


class NoTokenizer(Tokenizer):
    """Refuses text. Shows tokens as "token_id:N" if names are needed."""

    info = Info(summary="no tokenizer: prompts and answers are token ids")

    def __init__(self, options: Any, path: str) -> None:
        """Ignore a tokenizer's arguments."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Raise RequestError."""
        raise text_refused("prompt")

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Raise RequestError."""
        raise text_refused("prompt")

    def stream(
        self,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
    ) -> SilentStream:
        """Return a stream without text."""
        return SilentStream()

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id as text."""
        return [f"token_id:{token_id}" for token_id in token_ids]

    def token_bytes(self) -> list[bytes]:
        """Raise RequestError: constraints need a tokenizer."""
        raise text_refused("structured output")

    def facts(self) -> TokenizerFacts:
        """Return empty tokenizer facts."""
        return NoFacts()


def text_refused(where: str) -> RequestError:
    """Return the error for a request that has or needs text. `where` is its field."""
    return RequestError(
        "this server runs without a tokenizer (--skip-tokenizer-init).",
        where=where,
        fix="send token ids as the prompt of /v1/completions.",
        code="no_tokenizer",
    )
