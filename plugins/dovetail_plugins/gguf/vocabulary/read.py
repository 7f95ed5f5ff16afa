"""A GGUF file's vocabulary as the tokenizer.json that the same model has elsewhere.

The models of text that are read: "gpt2", byte pairs with their merges; "llama", SentencePiece's
pieces with scores, whose merges are all pairs of pieces that are a piece, the best score first;
"gemma4", such pieces with their merges; "bert", WordPiece; "t5", a unigram model.
Source: the tokenizer keys of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.vocabulary.missing import completed
from dovetail_plugins.gguf.vocabulary.splits import GEMMA4, KINDS, Kind

_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6
_SPACE = "\u2581"
_NAMED = {
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "seperator_token_id": "sep_token",
    "padding_token_id": "pad_token",
    "mask_token_id": "mask_token",
}
"""Settings that name a token, in their original spelling -> tokenizer_config.json's key."""
_PREFIX = "tokenizer.ggml."
_GOES_ON = "##"
_CASED_SHARE = 0.01
"""A WordPiece vocabulary in which more tokens have capitals is of a model that tells them apart."""
_TWO_SEPARATORS = {"roberta-bpe", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"}
"""Pre-tokenizers of models with two tokens between the texts of a pair, if a file does not say."""
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_PIECES_BACK: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
TEMPLATE = "tokenizer.chat_template"

Json = dict[str, Any]


def tokenizer_of(model: GgufModel) -> tuple[str, Json]:
    """Return the contents that tokenizer.json and tokenizer_config.json would have. Raises:
    ConfigError"""
    vocabulary = GgufVocabulary(model)
    content = vocabulary.content()
    return msgspec.json.encode(content).decode(), vocabulary.settings()


class GgufVocabulary:
    """The tokens of a file, their kinds, and how text becomes them."""

    def __init__(self, model: GgufModel) -> None:
        self.path = model.path
        self._values = completed(model.path, model.settings)
        self.tokens: list[str] = self._list("tokens", str)
        if not self.tokens:
            raise self._fault("the file has no vocabulary", "tokenizer.ggml.tokens")
        self.kinds: list[int] = self._list("token_type", int) or [1] * len(self.tokens)
        if len(self.kinds) != len(self.tokens):
            raise self._fault(f"{len(self.kinds)} kinds of {len(self.tokens)} tokens", "token_type")

    def content(self) -> Json:
        """Return tokenizer.json."""
        name = self._find("model", str)
        makers = {
            "gpt2": self._pairs,
            "llama": self._pieces,
            GEMMA4: self._pairs,
            "bert": self._word_pieces,
            "t5": self._unigrams,
        }
        if name not in makers:
            raise self._fault(
                f'vocabularies of the model "{name}" are not read; {", ".join(makers)} are', "model"
            )
        return {"version": "1.0", "added_tokens": self._added(), **makers[name]()}

    def settings(self) -> Json:
        """Return tokenizer_config.json."""
        named = {word: self._named(name) for name, word in _NAMED.items()}
        found = {word: text for word, text in named.items() if text is not None}
        templates = self._templates()
        return found | ({"chat_template": templates} if templates else {})

    def _templates(self) -> str | list[Json] | None:
        """Return the chat template, or several with their names."""
        first = self._values.get(TEMPLATE)
        others = {
            key.removeprefix(f"{TEMPLATE}."): text
            for key, text in self._values.items()
            if key.startswith(f"{TEMPLATE}.") and isinstance(text, str)
        }
        if not isinstance(first, str):
            return None
        if not others:
            return first
        all_of_them = {"default": first, **others}
        return [{"name": name, "template": text} for name, text in all_of_them.items()]

    def _pairs(self) -> Json:
        """Return a model of pairs that are merged, of bytes or of characters."""
        is_gemma = self._find("model", str) == GEMMA4
        name = GEMMA4 if is_gemma else self._find("pre", str)
        if name is None:
            raise self._fault(
                "the file does not say how text is cut into words, and its architecture and "
                "vocabulary do not say it either",
                "pre",
            )
        if name not in KINDS:
            raise self._fault(f'the pre-tokenizer "{name}" is not known to this version', "pre")
        kind = KINDS[name]
        merges = self._merges(kind)
        if not merges:
            raise self._fault("the file has no merges", "merges")
        return self._raw_pairs(kind, merges) if kind.raw else self._byte_pairs(kind, merges)

    def _merges(self, kind: Kind) -> list[tuple[str, str]]:
        """Return the pairs that are merged, in their order."""
        stated = [merge.partition(" ") for merge in self._list("merges", str)]
        if stated or not kind.ranks:
            return [(left, right) for left, _, right in stated if right]
        numbers = self._numbered()
        return merges_of(numbers, {text: -float(i) for text, i in numbers.items()})

    def _byte_pairs(self, kind: Kind, merges: Sequence[tuple[str, str]]) -> Json:
        """Return a model of bytes, which tokens write in GPT-2's letters."""
        bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                       "use_regex": False}  # fmt: skip
        steps = [*_cuts(kind.cuts), bytes_alone, *_cuts(kind.byte_cuts)]
        return {
            "normalizer": {"type": "NFC"} if kind.composes else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "post_processor": self._ends(begins=kind.begins),
            "decoder": bytes_alone,
            "model": {
                "type": "BPE",
                "vocab": self._numbered(),
                "merges": merges,
                "ignore_merges": kind.takes_whole,
            },
        }

    def _raw_pairs(self, kind: Kind, merges: Sequence[tuple[str, str]]) -> Json:
        """Return a model of characters, whose spaces are written as SentencePiece does."""
        return {
            "normalizer": _SPACES,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": _cuts(kind.cuts)},
            "post_processor": self._ends(begins=kind.begins),
            "decoder": {"type": "Sequence", "decoders": _PIECES_BACK},
            "model": {
                "type": "BPE",
                "vocab": self._numbered(),
                "merges": merges,
                "unk_token": self._named("unknown_token_id"),
                "fuse_unk": True,
                "byte_fallback": True,
            },
        }

    def _word_pieces(self) -> Json:
        """Return BERT's model: words, and pieces that continue a word."""
        unknown = self._named("unknown_token_id") or self._known("[UNK]")
        first = self._named("bos_token_id") or self._known("[CLS]")
        last = self._named("seperator_token_id") or self._known("[SEP]")
        lowers = self._find("normalizer.lowercase", bool)
        lowers = not self._has_capitals() if lowers is None else lowers
        strips = self._find("normalizer.strip_accents", bool)
        return {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": lowers if strips is None else strips,
                "lowercase": lowers,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": self._around(first, last, second_type=1),
            "decoder": {"type": "WordPiece", "prefix": _GOES_ON, "cleanup": True},
            "model": {
                "type": "WordPiece",
                "vocab": {
                    text: i
                    for i, text in reversed(
                        list(enumerate(map(self._word_piece, self.tokens, self.kinds)))
                    )
                },
                "unk_token": unknown,
                "continuing_subword_prefix": _GOES_ON,
                "max_input_chars_per_word": 100,
            },
        }

    def _word_piece(self, text: str, kind: int) -> str:
        """Return a token as BERT's own files write it: GGUF marks pieces that begin a word, BERT
        those that continue one."""
        is_named = text.startswith("[") and text.endswith("]") and len(text) > 2
        if kind in (_UNKNOWN, _CONTROL) or is_named:
            return text
        if kind == _USER:
            return text.removeprefix(_SPACE)
        return text.removeprefix(_SPACE) if text.startswith(_SPACE) else f"{_GOES_ON}{text}"

    def _has_capitals(self) -> bool:
        """Return whether more than a few words or pieces have capital letters."""
        plain = [t for t, kind in zip(self.tokens, self.kinds, strict=True) if kind == _NORMAL]
        cased = sum(text != text.lower() and text[:1] != "[" for text in plain)
        return cased > _CASED_SHARE * len(plain)

    def _unigrams(self) -> Json:
        """Return SentencePiece's unigram model: pieces with the log of their probability."""
        scores = self._scores()
        unknown = self._find("unknown_token_id", int)
        unknown = (
            self.kinds.index(_UNKNOWN) if unknown is None and _UNKNOWN in self.kinds else unknown
        )
        has_space = self._find("add_space_prefix", bool) is not False
        spaces = {"type": "Metaspace", "replacement": _SPACE, "split": True,
                  "prepend_scheme": "always" if has_space else "never"}  # fmt: skip
        first = self._named("bos_token_id") if self._find("add_bos_token", bool) else None
        has_last = self._find("add_eos_token", bool) is not False
        last = self._named("eos_token_id") if has_last else None
        return {
            "normalizer": {"type": "Sequence", "normalizers": self._normalizers()},
            "pre_tokenizer": spaces,
            "post_processor": self._around(first, last, separator=self._separator(first, last)),
            "decoder": spaces,
            "model": {
                "type": "Unigram",
                "unk_id": unknown,
                "vocab": list(map(list, zip(self.tokens, scores, strict=True))),
                "byte_fallback": _BYTE in self.kinds,
            },
        }

    def _normalizers(self) -> list[Json]:
        """Return what a unigram model does to a text first."""
        charsmap = bytes(one & 255 for one in self._list("precompiled_charsmap", int))
        coded = base64.b64encode(charsmap).decode()
        found: list[Json] = []
        if charsmap:
            found.append({"type": "Precompiled", "precompiled_charsmap": coded})
        if self._find("remove_extra_whitespaces", bool) is not False:
            found.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
            found.append({"type": "Strip", "strip_left": True, "strip_right": True})
        return found

    def _separator(self, first: str | None, last: str | None) -> str | None:
        """Return the token before a pair's second text, in addition to the first one's last."""
        stated = self._find("add_sep_token", bool)
        is_usual = self._find("pre", str) in _TWO_SEPARATORS or self._find("model", str) == "t5"
        has_two = is_usual if stated is None else stated
        if not has_two or first is None or last is None:
            return None
        return self._named("seperator_token_id") or last

    def _known(self, text: str) -> str:
        """Return a token that must be there. Raises: ConfigError"""
        if text not in self.tokens:
            raise self._fault(f"there is no token {text}", "tokens")
        return text

    def _pieces(self) -> Json:
        """Return SentencePiece's model."""
        scores = self._scores()
        has_space = self._find("add_space_prefix", bool) is not False
        before = [{"type": "Prepend", "prepend": _SPACE}] if has_space else []
        after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if has_space else []
        decoders = [*_PIECES_BACK, *after]
        unknown = self._named("unknown_token_id")
        vocabulary = self._numbered()
        return {
            "normalizer": {"type": "Sequence", "normalizers": [*before, _SPACES]},
            "pre_tokenizer": None,
            "post_processor": self._ends(begins=True),
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                "type": "BPE",
                "vocab": vocabulary,
                "merges": merges_of(vocabulary, dict(zip(self.tokens, scores, strict=True))),
                "unk_token": unknown,
                "fuse_unk": True,
                "byte_fallback": True,
            },
        }

    def _scores(self) -> list[float]:
        """Return the pieces' scores. Raises: ConfigError if it is not one each"""
        scores = self._list("scores", float)
        if len(scores) != len(self.tokens):
            raise self._fault(f"{len(scores)} scores of {len(self.tokens)} tokens", "scores")
        return scores

    def _numbered(self) -> dict[str, int]:
        """Return token -> id; the first of two equal ones keeps its own."""
        return {text: i for i, text in reversed(list(enumerate(self.tokens)))}

    def _added(self) -> list[Json]:
        """Return the tokens that are cut out of a text before anything else."""
        rules = {"single_word": False, "rstrip": False, "normalized": False}
        is_bert = self._find("model", str) == "bert"
        mask = None if is_bert else self._named("mask_token_id")
        return [
            {
                "id": i,
                "content": self._word_piece(text, kind) if is_bert else text,
                "lstrip": text == mask,
                **rules,
                "special": kind != _USER,
            }
            for i, (text, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in (_UNKNOWN, _CONTROL, _USER) and text
        ]

    def _ends(self, *, begins: bool) -> Json | None:
        """Return the post-processor that puts the first and the last token around a text."""
        stated = self._find("add_bos_token", bool)
        first = self._named("bos_token_id") if (begins if stated is None else stated) else None
        last = self._named("eos_token_id") if self._find("add_eos_token", bool) else None
        separator = self._separator(first, last)
        is_one = separator is not None or self._find("add_sep_token", bool) is not None
        return self._around(first, last, separator=separator, is_one=is_one)

    def _around(
        self,
        first: str | None,
        last: str | None,
        *,
        separator: str | None = None,
        second_type: int = 0,
        is_one: bool = True,
    ) -> Json | None:
        """Return the post-processor that puts these tokens around a text, if there are any.

        A pair is one text, in which a separator and the tokens of `second_type` follow the first's
        last token, or two (`is_one` False) of the types 0 and 1.
        """
        if first is None and last is None:
            return None
        named = {t: self.tokens.index(t) for t in (first, last, separator) if t is not None}
        second = (separator, "B", last, second_type) if is_one else (first, "B", last, 1)
        return {
            "type": "TemplateProcessing",
            "single": _template(first, "A", last, 0),
            "pair": [*_template(first, "A", last, 0), *_template(*second)],
            "special_tokens": {
                text: {"id": text, "ids": [i], "tokens": [text]} for text, i in named.items()
            },
        }

    def _named(self, name: str) -> str | None:
        """Return the text of a token that a setting names by its id."""
        found = self._find(name, int)
        if found is None:
            return None
        if not 0 <= found < len(self.tokens):
            raise self._fault(f"there is no token {found}", name)
        return self.tokens[found]

    def _find(self, name: str, kind: type) -> Any:
        value = self._values.get(f"{_PREFIX}{name}")
        if value is not None and type(value) is not kind:
            raise self._fault(f"{str(value)[:100]!r} is not a {kind.__name__}", name)
        return value

    def _list(self, name: str, kind: type) -> list[Any]:
        found = self._find(name, list) or []
        if not {*map(type, found)} <= {kind}:
            raise self._fault(f"not all of its entries are {kind.__name__}", name)
        return list(found)

    def _fault(self, what: str, name: str) -> ConfigError:
        key = name if name.startswith("tokenizer.") else f"{_PREFIX}{name}"
        return ConfigError(
            f"{key}: {what}",
            where=str(self.path),
            fix="give the folder of the model's own tokenizer.json: --tokenizer DIR.",
        )


def _cuts(expressions: Iterable[str]) -> list[Json]:
    """Return the pre-tokenizers that cut by expressions."""
    return [
        {"type": "Split", "pattern": {"Regex": cut}, "behavior": "Isolated", "invert": False}
        for cut in expressions
    ]


def merges_of(vocabulary: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that are a piece themselves, in the order they are merged in:
    the best score first, and among equal ones the longer pieces."""
    merges: list[tuple[float, int, int, int, int, str, str]] = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                number = vocabulary[piece]
                merges.append((-score, -len(left), -len(right), number, cut, left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _template(first: str | None, text: str, last: str | None, number: int) -> list[Json]:
    """Return the pieces of a text with the tokens around it, if there are any, all of a type."""
    before, after = (
        [] if token is None else [{"SpecialToken": {"id": token, "type_id": number}}]
        for token in (first, last)
    )
    return [*before, {"Sequence": {"id": text, "type_id": number}}, *after]


def read_tokenizer(file: Path) -> tuple[str, Json]:
    """Return the contents that tokenizer.json and tokenizer_config.json would have, of a GGUF
    file. Of a divided model the first file has them."""
    from dovetail_plugins.gguf.reading.file import files_of, forget_head, read_head

    first = files_of(file)[0]
    settings = read_head(first).settings
    forget_head()  # the tokenizer is the last that needs it
    return tokenizer_of(GgufModel(path=first, settings=settings, extents=()))
