"""Tokenizer: text to token ids and back, for engine and server."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from dovetail.interfaces.plugin import Plugin


class TokenStream(Protocol):
    """Turns one request's tokens into text as they arrive."""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty while a character is unfinished."""

    def flush(self) -> str:
        """Return the text still held back, as a full decode would show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFrame:
    """The special tokens around and between two texts that a model reads as a pair.

    The first `num_between_first` of `between` belong to the first text, for models that get a
    segment id per token (None: they do not).
    """

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    num_between_first: int | None = None


class Tokenizer(Plugin):
    """Shared by all requests and called from several threads; immutable after construction."""

    interface_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, options: Any, path: str) -> None:
        """Load from a checkpoint folder. Raises: ConfigError naming the missing file."""

    @classmethod
    def runs_code(cls, path: str) -> bool:
        """Return whether it would run code named in a path's settings; if allowed, it gets that
        code as its option `code`, a CheckpointCode. The default runs none."""
        return False

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""

    def encode_parts(
        self, text: str, *, add_special_tokens: bool = True
    ) -> Iterator[Sequence[int]]:
        """Yield the token ids of a long text part by part, so that a caller may pause or stop in
        between. Joined they equal `encode(text)`, which is what the default yields."""
        yield self.encode(text, add_special_tokens=add_special_tokens)

    def longest_token_chars(self) -> int | None:
        """Return the maximum number of characters that one token can represent; None if unknown,
        because some characters produce no token."""
        return None

    def added_texts(self) -> frozenset[str]:
        """Return the texts that always become one token; the default: the texts of the special
        tokens."""
        return frozenset(self.facts().special_texts.values())

    def encode_with_plain(
        self, text: str, plain: Sequence[tuple[int, int]], *, add_special_tokens: bool = True
    ) -> Sequence[int]:
        """Return the token ids of a text in which the control words at `plain` are ordinary text.

        The default splits the text after the first character of each of them.
        """
        cuts = [0, *(start + 1 for start, _ in plain), len(text)]
        parts = [
            self.encode(text[start:end], add_special_tokens=False)
            for start, end in itertools.pairwise(cuts)
        ]
        ids = [token_id for part in parts for token_id in part]
        if not add_special_tokens:
            return ids
        before, after = self.special_around()
        return [*before, *ids, *after]

    def special_around(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the special tokens that `encode` puts before and after a text."""
        bare = self.encode("a", add_special_tokens=False)
        whole = self.encode("a", add_special_tokens=True)
        at = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:at], whole[at + len(bare) :]

    def pair_frame(self) -> PairFrame:
        """Return the special tokens around and between two texts read as a pair; the default: as if
        both were one text."""
        before, after = self.special_around()
        return PairFrame(before=tuple(before), after=tuple(after))

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

        Special tokens among `kept_ids` are written even if the others are skipped.

        The joined pieces and the final flush equal decode(prompt + tokens) without the prompt's own
        text.
        """

    @abstractmethod
    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id's own text (for logprobs); incomplete characters become U+FFFD."""

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Return the vocabulary's name of each id ("\u0120word"). The default is its text."""
        return self.tokens(token_ids)

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each id writes, by id. The default is right for ids whose own
        text is whole characters."""
        return [text.encode() for text in self.tokens(range(self.facts().vocab_size))]

    def bytes_of(self, token_ids: Sequence[int]) -> list[bytes]:
        """Return the bytes that each of these ids writes. The default reads `token_bytes`."""
        written = self.token_bytes()
        return [written[token_id] for token_id in token_ids]

    def response_template(self) -> dict[str, Any] | None:
        """Return how a checkpoint says its answers are written (`parse_response` of transformers);
        the default, None: it does not."""
        return None

    @abstractmethod
    def facts(self) -> TokenizerFacts:
        """Return the fixed facts of this tokenizer."""


class TokenizerFacts(Protocol):
    """`vocab_size` includes added tokens. `chat_template` is the checkpoint's own, or None; a dict
    of several is reduced to its "default" (and "tool_use" if that exists). `special_tokens` maps
    bos_token, eos_token, pad_token, ... to their text, `special_texts` every one of `special_ids`
    to its text."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    special_tokens: dict[str, str]
    special_ids: frozenset[int]
    special_texts: dict[int, str]
    chat_template: str | None
    chat_templates: dict[str, str]
    max_tokens: int | None


def end_token_ids(stated: Iterable[int], facts: TokenizerFacts) -> tuple[int, ...]:
    """Return the tokens that end an answer: those that a checkpoint states, then the tokenizer's
    own, which the checkpoint may not name."""
    own = () if facts.eos_token_id is None else (facts.eos_token_id,)
    return tuple(dict.fromkeys((*stated, *own)))
