"""Tokenizers of checkpoint folders: `tokenizers` for a tokenizer.json or Mistral's own file,
transformers otherwise. Decoded text is exactly what the model wrote: spaces are never cleaned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dovetail.interfaces.data.checkpoint_code import CheckpointCode
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import PairFrame, Tokenizer, TokenizerFacts, TokenStream
from dovetail_plugins.mistral._vocabulary import find_file
from dovetail_plugins.tokenizers import _files


@dataclass(frozen=True, slots=True, kw_only=True)
class HfOptions:
    """The code that the tokenizer may run."""

    code: CheckpointCode | None = field(
        default=None,
        metadata={"help": "the checkpoint's code, as --trust-remote-code allowed it"},
    )


class HfTokenizer(Tokenizer):
    """The folder's tokenizer, without transformers if there is a tokenizer.json."""

    Options: ClassVar[type[Any]] = HfOptions

    info = Info(
        summary="tokenizer.json through tokenizers, anything else through transformers",
        source="https://huggingface.co/docs/tokenizers",
        requires=("tokenizers",),
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the path is no tokenizer folder. `query` is a path or None."""
        if query is None:
            return []
        if Path(query).is_file():
            return [f"{query} is a file, not a folder"]
        if not _files.has_tokenizer(Path(query)):
            return ["the folder has no tokenizer.json, nor any other tokenizer file"]
        return []

    @classmethod
    def runs_code(cls, path: str) -> bool:
        """Return whether the folder has a custom class, and no file that can be read without it."""
        folder = Path(path)
        is_plain = (folder / "tokenizer.json").is_file() or find_file(folder) is not None
        return not is_plain and _files.names_code(folder)

    _folder: Path | None = None
    """The checkpoint's folder; None for a subclass that reads a file."""

    def __init__(self, options: Any, path: str) -> None:
        folder = Path(path)
        _files.require_tokenizer(folder)
        self._code = options.code if isinstance(options, HfOptions) else None
        self._folder = folder
        self._inner: Any = self._load(folder)

    def _load(self, folder: Path) -> Any:
        if (folder / "tokenizer.json").is_file():
            from dovetail_plugins.tokenizers._fast import FastTokenizer

            return FastTokenizer(folder)
        own = find_file(folder)
        if own is not None:
            from dovetail_plugins.mistral._tokenizer import read_tokenizer

            return read_tokenizer(own)
        from dovetail_plugins.tokenizers._slow import SlowTokenizer

        return SlowTokenizer(folder, self._code)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def encode_parts(
        self, text: str, *, add_special_tokens: bool = True
    ) -> Iterator[Sequence[int]]:
        """Yield the token ids of a long text part by part."""
        yield from self._inner.encode_parts(text, add_special_tokens=add_special_tokens)

    def added_texts(self) -> frozenset[str]:
        """Return the texts that always become one token."""
        texts: frozenset[str] = self._inner.added_texts()
        return texts

    def encode_with_plain(
        self, text: str, plain: Sequence[tuple[int, int]], *, add_special_tokens: bool = True
    ) -> Sequence[int]:
        """Return the token ids of a text in which the control words at `plain` are ordinary."""
        ids: list[int] | None = self._inner.encode_with_plain(text, plain, add_special_tokens)
        if ids is not None:
            return ids
        return super().encode_with_plain(text, plain, add_special_tokens=add_special_tokens)

    def pair_frame(self) -> PairFrame:
        """Return the special tokens of the checkpoint's template around and between two texts."""
        frame: PairFrame = self._inner.pair_frame()
        return frame

    def longest_token_chars(self) -> int | None:
        """Return the maximum number of characters of one token, None if unknown."""
        longest: int | None = self._inner.longest_token_chars()
        return longest

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; ids outside the vocabulary have none."""
        return str(self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def stream(
        self,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        kept_ids: frozenset[int] = frozenset(),
    ) -> TokenStream:
        """Return a stream that continues after `prompt_ids`."""
        special = self.facts().special_ids if skip_special_tokens else frozenset()
        stream: TokenStream = self._inner.stream(prompt_ids, left_out=special - kept_ids)
        return stream

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id's own piece as text."""
        pieces: list[str] = self._inner.tokens(token_ids)
        return pieces

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id's name in the vocabulary."""
        names: list[str] = self._inner.names(token_ids)
        return names

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each id writes, by id."""
        written: list[bytes] = self._inner.token_bytes()
        return written

    def bytes_of(self, token_ids: Sequence[int]) -> list[bytes]:
        """Return the bytes that each of these ids writes."""
        written: list[bytes] = self._inner.bytes_of(token_ids)
        return written

    def response_template(self) -> dict[str, Any] | None:
        """Return the response template of tokenizer_config.json, None if there is none."""
        settings = _files.read_settings(self._folder) if self._folder else {}
        found = settings.get("response_template")
        return found if isinstance(found, dict) else None

    def facts(self) -> TokenizerFacts:
        """Return the fixed facts."""
        facts: TokenizerFacts = self._inner.facts()
        return facts


class TransformersTokenizer(HfTokenizer):
    """The tokenizer by transformers' AutoTokenizer, whatever files there are."""

    info = Info(summary="transformers' AutoTokenizer", requires=("transformers",))

    @classmethod
    def runs_code(cls, path: str) -> bool:
        """Return whether the folder has a custom class."""
        return _files.names_code(Path(path))

    def _load(self, folder: Path) -> Any:
        from dovetail_plugins.tokenizers._slow import SlowTokenizer

        return SlowTokenizer(folder, self._code)
