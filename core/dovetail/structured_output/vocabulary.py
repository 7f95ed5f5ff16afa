"""vocabulary_of(tokenizer): a model's tokens as bytes, and the tokenization of texts."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import registry
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.structured_output import Vocabulary
from dovetail.interfaces.tokenizer import Tokenizer, end_token_ids

LEADS = ("", "\x02", "\n", ".")
"""Prefixes for tokenizing a continuation: some tokenizers add a space before a first word."""
SAMPLES = ("a", "{", '"', " a", "1")


def vocabulary_of(tokenizer: Tokenizer, eos_ids: tuple[int, ...], size: int) -> Vocabulary:
    """Return the vocabulary of a model whose logits have `size` entries. `eos_ids` are the
    checkpoint's end tokens; the tokenizer's own is added."""
    facts = tokenizer.facts()
    ends = tuple(i for i in end_token_ids(eos_ids, facts) if i < size)
    special = frozenset(i for i in (*facts.special_ids, *ends) if i < size)
    written = tokenizer.token_bytes()[:size]
    written += [b""] * (size - len(written))
    tokens = [b"" if i in special else text for i, text in enumerate(written)]
    return Vocabulary(
        tokens=tokens,
        special={written[i].decode(): i for i in sorted(special) if written[i]},
        special_ids=special,
        eos_ids=ends,
        size=size,
        encode=TextEncoder(tokenizer, tokens),
    )


class TextEncoder:
    """Tokenizes a text as it would be inside a longer text."""

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[bytes]) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._lead = next((lead for lead in LEADS if self._is_neutral(lead)), None)

    def __call__(self, text: str) -> list[int] | None:
        """Return the tokens, or None if they do not spell this text byte for byte: the tokenizer
        changes it, or finds a special token in it."""
        return None if self._lead is None else self._behind(self._lead, text)

    def _is_neutral(self, lead: str) -> bool:
        return all(self._behind(lead, sample) is not None for sample in SAMPLES)

    def _behind(self, lead: str, text: str) -> list[int] | None:
        before = self._tokenizer.encode(lead, add_special_tokens=False) if lead else []
        ids = self._tokenizer.encode(lead + text, add_special_tokens=False)
        if ids[: len(before)] != before:
            return None
        found = ids[len(before) :]
        if not all(i < len(self._tokens) for i in found):
            return None
        return found if b"".join(self._tokens[i] for i in found) == text.encode() else None


def load_vocabulary(
    tokenizer: Selection, path: str, eos_ids: tuple[int, ...], size: int
) -> Vocabulary:
    """Return the vocabulary of a tokenizer plugin and folder."""
    plugin: Tokenizer = registry.make(tokenizer, path)
    return vocabulary_of(plugin, eos_ids, size)
