"""FastTokenizer: a tokenizer.json, using only the `tokenizers` library.

Beginning and end tokens come from the file's own post-processor, as in AutoTokenizer (which drops
add_bos_token and add_eos_token if there is a tokenizer.json). Imports no transformers.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from dovetail.errors import ConfigError
from dovetail.interfaces.tokenizer import PairFrame, TokenStream
from dovetail.json_values import json_struct, json_value
from dovetail_plugins.tokenizers import _files
from dovetail_plugins.tokenizers._known_pieces import KnownPieces, Span, starts_of
from dovetail_plugins.tokenizers._pairs import frame_of
from dovetail_plugins.tokenizers._plain_words import PlainWords
from dovetail_plugins.tokenizers._shape import PIECE_CHARS, TokenizerShape, pieces, shape_of
from dovetail_plugins.tokenizers._streams import ByteLevelStream, WindowStream

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
SPACE_MARK = "\u2581"
SHORT_CHARS = 4096
"""Texts that are tokenized in less time than another thread would notice."""


class _Content(msgspec.Struct):
    """The part of a tokenizer.json that is read here."""

    decoder: dict[str, Any] | None = None


class FastTokenizer:
    """The tokenizer of a checkpoint that has tokenizer.json.

    `content` and `settings` replace tokenizer.json and tokenizer_config.json if the checkpoint has
    the same data in other files, `path` among them.
    """

    def __init__(
        self, path: Path, *, content: str | None = None, settings: dict[str, Any] | None = None
    ) -> None:
        file = path / "tokenizer.json" if content is None else path
        self._settings = _files.read_settings(path) if settings is None else settings
        try:
            content = file.read_text(encoding="utf-8") if content is None else content
            self._backend = Backend.from_str(content)
        except Exception as error:
            # The library raises plain Exception for everything that is wrong with the file.
            raise ConfigError(
                f"cannot be read as a tokenizer: {error}",
                where=str(file),
                fix="download the file again.",
            ) from error
        decoder = json_struct(content, _Content).decoder or {}
        self._decoder_types = _types(decoder)
        self._marks_spaces = SPACE_MARK in json.dumps(decoder, ensure_ascii=False)
        self._named = _files.special_tokens(self._settings)
        self._prepare()
        added = self._backend.get_added_tokens_decoder()
        self._added = {i: token.content for i, token in added.items()}
        self._special = frozenset(i for i, token in added.items() if token.special)
        self._facts = self._build_facts(path)

    def _prepare(self) -> None:
        """Add tokens that only the settings know; switch truncation and padding off."""
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = bool(self._settings.get("split_special_tokens"))
        present = {t.content for t in self._backend.get_added_tokens_decoder().values()}
        wanted = _settings_tokens(self._settings, self._named)
        self._backend.add_tokens([t for t in wanted if t.content not in present])

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text. A long one does not hold the interpreter."""
        if len(text) <= SHORT_CHARS:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        parts = self.encode_parts(text, add_special_tokens=add_special_tokens)
        return [token_id for part in parts for token_id in part]

    def encode_parts(
        self, text: str, *, add_special_tokens: bool = True
    ) -> Iterator[Sequence[int]]:
        """Yield the token ids of a long text piece by piece: the library needs hundreds of bytes
        per character. The tokens of the pieces are those of the whole."""
        if self._known_pieces is None or len(text) <= SHORT_CHARS:
            yield from self._cut_parts(text, add_special_tokens)
            return
        before, after = self._around if add_special_tokens else ([], [])
        parts = itertools.chain([before], self._known_pieces.parts(text), [after])
        yield from (part for part in parts if len(part))

    def _cut_parts(self, text: str, add_special_tokens: bool) -> Iterator[list[int]]:
        """Yield the ids of a text in pieces that are cut between words, if it is long."""
        cut = self._shape.cut if len(text) > 2 * PIECE_CHARS else None
        if cut is None:
            yield self._encode_freely(text, add_special_tokens)
            return
        before, after = self._around if add_special_tokens else ([], [])
        yield before
        for piece in pieces(text, cut):
            yield self._encode_freely(piece, False)
        yield after

    @cached_property
    def _known_pieces(self) -> KnownPieces | None:
        """The tokens of the latest pieces; None if no text can be cut, or is not split alike."""
        tokens = list(self._backend.get_added_tokens_decoder().values())
        starts = starts_of(tokens, "".join(self._facts.chat_templates.values()))
        is_random = bool(getattr(self._backend.model, "dropout", None))
        if not starts or is_random or self._backend.encode_special_tokens:
            return None
        return KnownPieces(self._encode_piece, starts)

    def _encode_piece(self, piece: str, plain: Sequence[Span]) -> Iterator[list[int]]:
        if plain:
            yield self._plain_words.encode(piece, plain)
        else:
            yield from self._cut_parts(piece, False)

    def _encode_freely(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text, other threads running meanwhile, which `encode` of the library
        does not allow."""
        (found,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(found.ids)

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The ids that the file puts before and after a text."""
        bare = self._backend.encode("a", add_special_tokens=False).ids
        whole = self._backend.encode("a", add_special_tokens=True).ids
        at = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return whole[:at], whole[at + len(bare) :]

    @cached_property
    def _shape(self) -> TokenizerShape:
        return shape_of(json_value(self._backend.to_str()), self._byte_of)

    def added_texts(self) -> frozenset[str]:
        """Return the texts of all added tokens."""
        return frozenset(self._added.values())

    def encode_with_plain(
        self, text: str, plain: Sequence[tuple[int, int]], add_special_tokens: bool
    ) -> list[int]:
        """Return the token ids of a text in which the words at `plain` are ordinary text."""
        before, after = self._around if add_special_tokens else ([], [])
        if self._known_pieces is None or len(text) <= SHORT_CHARS:
            return [*before, *self._plain_words.encode(text, plain), *after]
        return [*before, *itertools.chain(*self._known_pieces.parts(text, plain)), *after]

    def pair_frame(self) -> PairFrame:
        """Return the file's special tokens around and between two texts."""
        return self._pair_frame

    @cached_property
    def _pair_frame(self) -> PairFrame:
        pairs = (self._backend.encode(text, text) for text in ("a", *self._backend.get_vocab()))
        pair = next(pair for pair in pairs if 1 in pair.sequence_ids)
        types = pair.type_ids if _files.tells_types(self._settings) else None
        return frame_of(pair.ids, pair.sequence_ids, types)

    @cached_property
    def _plain_words(self) -> PlainWords:
        return PlainWords(self._backend)

    def longest_token_chars(self) -> int | None:
        """Return the maximum number of characters of one token, None if unknown."""
        return self._shape.longest_token_chars

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        return str(self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def stream(self, prompt_ids: Sequence[int], *, left_out: frozenset[int]) -> TokenStream:
        """Return a stream that continues after `prompt_ids` and skips the tokens `left_out`."""
        if self._decoder_types == ["ByteLevel"]:
            return ByteLevelStream(lambda i: b"" if i in left_out else self._bytes(i), prompt_ids)
        return WindowStream(
            lambda ids: self.decode(
                [i for i in ids if i not in left_out], skip_special_tokens=False
            ),
            prompt_ids,
            is_open=self._is_byte if "ByteFallback" in self._decoder_types else lambda _: False,
            is_left_out=lambda i: i in left_out or self._backend.id_to_token(i) is None,
            waits_for_whole="ByteFallback" not in self._decoder_types,
        )

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id's own piece as text."""
        return [self._piece(i) for i in token_ids]

    def names(self, token_ids: Sequence[int]) -> list[str]:
        """Return each id's name in the vocabulary; an id without a token is empty."""
        return [self._backend.id_to_token(i) or "" for i in token_ids]

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each id writes, by id."""
        return self.bytes_of(range(self._facts.vocab_size))

    def bytes_of(self, token_ids: Sequence[int]) -> list[bytes]:
        """Return the bytes that each of these ids writes."""
        return [self._written(i) for i in token_ids]

    def _written(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self._added:
            return self._added.get(token_id, "").encode()
        if "ByteLevel" in self._decoder_types:
            return self._bytes(token_id)
        if "ByteFallback" in self._decoder_types and (match := BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        return self._piece(token_id).encode()

    def facts(self) -> _files.FileFacts:
        """Return the fixed facts."""
        return self._facts

    def _build_facts(self, folder: Path) -> _files.FileFacts:
        templates = _files.chat_templates(folder, self._settings)
        return _files.FileFacts(
            vocab_size=max(self._backend.get_vocab(with_added_tokens=True).values()) + 1,
            bos_token_id=self._id("bos_token"),
            eos_token_id=self._id("eos_token"),
            special_tokens=self._named,
            special_ids=self._special,
            special_texts={i: self._added[i] for i in sorted(self._special)},
            chat_template=templates.get("default"),
            chat_templates=templates,
            max_tokens=_files.max_tokens(self._settings),
        )

    def _id(self, name: str) -> int | None:
        text = self._named.get(name)
        return None if text is None else self._backend.token_to_id(text)

    def _is_byte(self, token_id: int) -> bool:
        token = self._backend.id_to_token(token_id)
        return token is not None and BYTE_TOKEN.fullmatch(token) is not None

    def _bytes(self, token_id: int) -> bytes:
        """Return a byte-level token's bytes. A token with any foreign character is plain text."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return token.translate(self._latin).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    def _piece(self, token_id: int) -> str:
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self._added:
            return self._added.get(token_id, "")
        if "ByteLevel" in self._decoder_types:
            return self._bytes(token_id).decode(errors="replace")
        if "ByteFallback" in self._decoder_types and (match := BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1]).decode(errors="replace")
        return token.replace(SPACE_MARK, " ") if self._marks_spaces else token

    @cached_property
    def _latin(self) -> dict[int, str]:
        """Character -> the Latin-1 character of its byte; one outside Latin-1 if it has none."""
        foreign = dict.fromkeys(range(256), "\u0100")
        return foreign | {ord(one): chr(byte) for one, byte in self._byte_of.items()}

    @cached_property
    def _byte_of(self) -> dict[str, int]:
        """The inverse of the map from bytes to printable characters.

        Source: Radford et al. 2019, section 2.2: printable Latin-1 bytes map to themselves, the
        others to the characters from 256 on, in order.
        """
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in printable]
        own = {chr(b): b for b in printable}
        return own | {chr(256 + n): b for n, b in enumerate(others)}


def _types(decoder: Mapping[str, Any]) -> list[str]:
    """Return the types of a decoder and of the parts of a sequence."""
    if decoder.get("type") == "Sequence":
        return [t for part in decoder.get("decoders", ()) for t in _types(part)]
    return [str(decoder["type"])] if "type" in decoder else []


def _settings_tokens(settings: Mapping[str, Any], named: Mapping[str, str]) -> list[AddedToken]:
    """Return the tokens that the settings want to exist, those with an id first."""
    numbered: Mapping[str, Any] = settings.get("added_tokens_decoder") or {}
    special = {*named.values(), *_files.extra_special_tokens(settings)}
    tokens = []
    for _, entry in sorted(numbered.items(), key=lambda item: int(item[0])):
        flags = {k: bool(entry.get(k)) for k in ("lstrip", "rstrip", "single_word", "normalized")}
        text = str(entry["content"])
        tokens.append(
            AddedToken(text, special=bool(entry.get("special")) or text in special, **flags)
        )
    known = {t.content for t in tokens}
    ordered = dict.fromkeys([*named.values(), *_files.extra_special_tokens(settings)])
    return [*tokens, *(AddedToken(t, special=True) for t in ordered if t not in known)]
