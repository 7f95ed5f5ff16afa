"""Tokenizer: text to token ids and back, as engine and server use it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from dovetail.interfaces.plugin import Plugin


class TokenStream(Protocol):
    """Turns one request's tokens into text as they come."""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character is unfinished."""

    def flush(self) -> str:
        """Return what is still held back, as a full decode would show it."""


class Tokenizer(Plugin):
    """Shared by all requests and called from several threads; immutable after construction."""

    interface_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, options: Any, path: str) -> None:
        """Load from a checkpoint folder. Raises: ConfigError naming the missing file."""

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""

    @abstractmethod
    def stream(
        self,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
    ) -> TokenStream:
        """Return a stream that continues after `prompt_ids`.

        Special tokens among `kept_ids` are written even where the others are skipped.

        The joined pieces and the final flush equal decode(prompt + tokens) without the
        prompt's own text.
        """

    @abstractmethod
    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id's own text (for logprobs); bytes of no character become U+FFFD."""

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each id writes, by id. The default is right for ids whose own
        text is whole characters."""
        return [text.encode() for text in self.tokens(range(self.facts().vocab_size))]

    @abstractmethod
    def facts(self) -> TokenizerFacts:
        """Return the fixed facts of this tokenizer."""


class TokenizerFacts(Protocol):
    """`vocab_size` counts added tokens too. `chat_template` is the checkpoint's own, or None;
    a dict of several is reduced to its "default" (and "tool_use" where that exists).
    `special_tokens` maps bos_token, eos_token, pad_token, ... to their text, `special_texts` every
    one of `special_ids` to its text."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    special_tokens: dict[str, str]
    special_ids: frozenset[int]
    special_texts: dict[int, str]
    chat_template: str | None
    chat_templates: dict[str, str]
    max_tokens: int | None
