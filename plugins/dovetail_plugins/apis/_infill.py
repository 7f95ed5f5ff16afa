"""Fill-in-the-middle: prompts with a suffix, for models whose tokenizer supports them.

Each family of code models has its own tokens around prefix and suffix; the vocabulary shows which.
Source: the model cards of StarCoder, Code Llama, DeepSeek-Coder, Codestral, Qwen2.5-Coder,
CodeGemma and Seed-Coder; Bavarian et al. 2022, Efficient Training of Language Models to Fill in the
Middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dovetail.errors import RequestError
from dovetail.interfaces.tokenizer import Tokenizer

MAX_KNOWN = 4
_PROBE = "\u263a"
"""A character put before a suffix, so that no tokenizer treats the suffix as the start of a
text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillTokens:
    """The tokens of a model family. With `is_suffix_first` the suffix precedes the prefix; an empty
    `middle` is omitted. `repository` starts a repository and each of its files, for models that
    know them. `ends` may end the answer, in addition to the model's own end tokens."""

    prefix: str
    suffix: str
    middle: str = ""
    is_suffix_first: bool = False
    repository: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


LAYOUTS = (
    InfillTokens(
        prefix="<|fim_prefix|>",
        suffix="<|fim_suffix|>",
        middle="<|fim_middle|>",
        repository=("<|repo_name|>", "<|file_sep|>"),
        ends=(
            "<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|file_separator|>",
        ),
    ),
    InfillTokens(
        prefix="<fim_prefix>",
        suffix="<fim_suffix>",
        middle="<fim_middle>",
        repository=("<repo_name>", "<file_sep>"),
        ends=("<|endoftext|>", "<fim_pad>", "<file_sep>"),
    ),
    InfillTokens(
        prefix="<fim-prefix>",
        suffix="<fim-suffix>",
        middle="<fim-middle>",
        ends=("<|endoftext|>", "<fim-pad>"),
    ),
    InfillTokens(
        prefix="\u2581<PRE>",
        suffix="\u2581<SUF>",
        middle="\u2581<MID>",
        ends=("\u2581<EOT>",),
    ),
    InfillTokens(
        prefix="<\uff5cfim\u2581begin\uff5c>",
        suffix="<\uff5cfim\u2581hole\uff5c>",
        middle="<\uff5cfim\u2581end\uff5c>",
    ),
    InfillTokens(prefix="[PREFIX]", suffix="[SUFFIX]", is_suffix_first=True),
    InfillTokens(
        prefix="<[fim-prefix]>",
        suffix="<[fim-suffix]>",
        middle="<[fim-middle]>",
        is_suffix_first=True,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Infill:
    """A layout as token ids of one tokenizer. Every prompt begins with `head`. `repository` has all
    of its tokens or none."""

    head: tuple[int, ...]
    prefix: int
    suffix: int
    middle: tuple[int, ...]
    is_suffix_first: bool
    repository: tuple[int, ...]
    ends: tuple[int, ...]

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """Return the prompt that requests the text between prefix and suffix."""
        before, after = (self.prefix, *prefix), (self.suffix, *suffix)
        first, second = (after, before) if self.is_suffix_first else (before, after)
        return [*self.head, *first, *second, *self.middle]


@lru_cache(MAX_KNOWN)
def infill_of(tokenizer: Tokenizer) -> Infill:
    """Return the layout of this tokenizer. Raises: RequestError if it has none"""
    for layout in LAYOUTS:
        names = [layout.prefix, layout.suffix, *([layout.middle] if layout.middle else [])]
        known = _known(tokenizer, names)
        if len(known) < len(names):
            continue
        repository = _known(tokenizer, layout.repository)
        return Infill(
            head=_head(tokenizer),
            prefix=known[0],
            suffix=known[1],
            middle=known[2:],
            is_suffix_first=layout.is_suffix_first,
            repository=repository if len(repository) == len(layout.repository) else (),
            ends=_known(tokenizer, layout.ends),
        )
    raise RequestError(
        "this model cannot fill in the middle: its tokenizer has no tokens for prefix and suffix.",
        where="suffix",
        fix="use a model that was made for it, such as Qwen2.5-Coder or StarCoder2, or leave the "
        "suffix out.",
        code="unsupported_field",
    )


def suffix_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a suffix, tokenized as the continuation of a text."""
    probe = tokenizer.encode(_PROBE, add_special_tokens=False)
    ids = tokenizer.encode(_PROBE + text, add_special_tokens=False)
    if ids[: len(probe)] == probe:
        return ids[len(probe) :]
    return tokenizer.encode(text, add_special_tokens=False)


def _known(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of the texts that are single tokens."""
    ids = (_token_id(tokenizer, text) for text in texts)
    return tuple(token_id for token_id in ids if token_id is not None)


def _token_id(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the id of a text that is a single token; None if it is several."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return ids[0] if len(ids) == 1 and tokenizer.tokens(ids) == [text] else None


def _head(tokenizer: Tokenizer) -> tuple[int, ...]:
    bos = tokenizer.facts().bos_token_id
    with_bos = tokenizer.encode("x", add_special_tokens=True)
    return (bos,) if bos is not None and with_bos[:1] == [bos] else ()
