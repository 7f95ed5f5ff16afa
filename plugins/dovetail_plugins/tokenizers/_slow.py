"""SlowTokenizer: a folder's tokenizer from transformers' AutoTokenizer (sentencepiece, tiktoken).

Tokenizers that ship with transformers, or the class of a checkpoint's code that was allowed to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.checkpoint_code import TOKENIZER, CheckpointCode
from dovetail.interfaces.tokenizer import PairFrame, TokenStream
from dovetail_plugins.checkpoint_code import load_class
from dovetail_plugins.tokenizers import _files
from dovetail_plugins.tokenizers._pairs import frame_of
from dovetail_plugins.tokenizers._streams import WindowStream


class SlowTokenizer:
    """The tokenizer of a checkpoint that has no tokenizer.json."""

    def __init__(self, folder: Path, code: CheckpointCode | None = None) -> None:
        self._tokenizer: Any = _loaded(folder, code)
        added = self._tokenizer.added_tokens_decoder
        flagged = {i for i, token in added.items() if token.special}
        self._special = frozenset({*self._tokenizer.all_special_ids, *flagged})
        self._facts = self._build_facts(folder)
        self._tells_types = _files.tells_types(_files.read_settings(folder))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def encode_parts(self, text: str, *, add_special_tokens: bool = True) -> Iterator[list[int]]:
        """Yield the token ids of a text, in one part."""
        yield self.encode(text, add_special_tokens=add_special_tokens)

    def added_texts(self) -> frozenset[str]:
        """Return the texts of all added tokens."""
        return frozenset(str(t) for t in self._tokenizer.added_tokens_decoder.values())

    def encode_with_plain(
        self, text: str, plain: Sequence[tuple[int, int]], add_special_tokens: bool
    ) -> None:
        """Return None: transformers cannot distinguish occurrences."""

    def pair_frame(self) -> PairFrame:
        """Return the tokenizer's special tokens around and between two texts."""
        pair = self._tokenizer(
            "a", "a", return_special_tokens_mask=True, return_token_type_ids=True
        )
        left = iter([0] * len(self.encode("a", add_special_tokens=False)))
        texts = [None if mark else next(left, 1) for mark in pair["special_tokens_mask"]]
        types = pair["token_type_ids"] if self._tells_types else None
        return frame_of(pair["input_ids"], texts, types)

    def longest_token_chars(self) -> None:
        """Return None: transformers does not say."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        return str(
            self._tokenizer.decode(
                list(token_ids),
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        )

    def stream(self, prompt_ids: Sequence[int], *, left_out: frozenset[int]) -> TokenStream:
        """Return a stream that continues after `prompt_ids` and skips the tokens `left_out`."""
        return WindowStream(
            lambda ids: self.decode(
                [i for i in ids if i not in left_out], skip_special_tokens=False
            ),
            prompt_ids,
            is_open=self._is_byte,
            is_left_out=lambda i: i in left_out,
            waits_for_whole=True,
        )

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id's own piece as text."""
        return [self.decode([i], skip_special_tokens=False) for i in token_ids]

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id's name in the vocabulary."""
        return [str(name) for name in self._tokenizer.convert_ids_to_tokens(list(token_ids))]

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each id writes, by id (sentencepiece: bytes and space marks)."""
        return self.bytes_of(range(self._facts.vocab_size))

    def bytes_of(self, token_ids: Sequence[int]) -> list[bytes]:
        """Return the bytes that each of these ids writes."""
        return [_written(p) for p in self._tokenizer.convert_ids_to_tokens(list(token_ids))]

    def facts(self) -> _files.FileFacts:
        """Return the fixed facts."""
        return self._facts

    def _is_byte(self, token_id: int) -> bool:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        return isinstance(token, str) and len(token) == 6 and token.startswith("<0x")

    def _build_facts(self, folder: Path) -> _files.FileFacts:
        settings = _files.read_settings(folder)
        templates = _files.chat_templates(folder, settings)
        named = {
            name: str(text)
            for name, text in self._tokenizer.special_tokens_map.items()
            if isinstance(text, str)
        }
        return _files.FileFacts(
            vocab_size=max(self._tokenizer.get_vocab().values()) + 1,
            bos_token_id=self._tokenizer.bos_token_id,
            eos_token_id=self._tokenizer.eos_token_id,
            special_tokens=named,
            special_ids=self._special,
            special_texts=dict(
                zip(
                    sorted(self._special),
                    map(str, self._tokenizer.convert_ids_to_tokens(sorted(self._special))),
                    strict=True,
                )
            ),
            chat_template=templates.get("default"),
            chat_templates=templates,
            max_tokens=_files.max_tokens(settings),
        )


def _loaded(folder: Path, code: CheckpointCode | None) -> Any:
    """Return transformers' tokenizer of a folder. Raises: ConfigError"""
    from transformers import AutoTokenizer

    kind = AutoTokenizer if code is None else load_class(code, TOKENIZER)
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        # Missing packages, unknown classes and malformed files all end here.
        runs = code is None and _files.names_code(folder)
        also = ", or allow the code that comes with it by --trust-remote-code" if runs else ""
        raise ConfigError(
            f"transformers cannot load the tokenizer: {error}",
            where=str(folder),
            fix=f"add a tokenizer.json to the folder, or name another with --tokenizer{also}.",
        ) from error


def _written(piece: object) -> bytes:
    if not isinstance(piece, str):
        return b""
    if len(piece) == 6 and piece.startswith("<0x"):
        return bytes.fromhex(piece[3:5])
    return piece.replace("\u2581", " ").encode()
