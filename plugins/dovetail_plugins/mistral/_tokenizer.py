"""Mistral's vocabularies as tokenizers of the `tokenizers` library, ids unchanged.

A merge of the library is a pair of tokens; Mistral's files rank the tokens that merges make. All
pairs that make a token become its merges, so that the same pair is merged first in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Strip
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import Sequence as DecoderSequence
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend
from tokenizers.normalizers import Replace as ReplaceText
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreSequence
from tokenizers.processors import TemplateProcessing

from dovetail.errors import ConfigError
from dovetail_plugins.mistral import _vocabulary
from dovetail_plugins.mistral._templates import template_of
from dovetail_plugins.tokenizers._fast import FastTokenizer

BOS, EOS, UNKNOWN = "<s>", "</s>", "<unk>"
SPACE = "\u2581"


def read_tokenizer(file: Path) -> FastTokenizer:
    """Return the tokenizer of a file. Raises: ConfigError."""
    if file.name == _vocabulary.TEKKEN:
        tekken = _vocabulary.read_tekken(file)
        backend, version = from_tekken(tekken), tekken.version
    else:
        backend = from_pieces(_vocabulary.read_pieces(file))
        version = _vocabulary.version_of(file)
    for token in (BOS, EOS):
        if backend.token_to_id(token) is None:
            raise ConfigError(f"the vocabulary has no {token}", where=str(file))
    settings = {"bos_token": BOS, "eos_token": EOS, "unk_token": UNKNOWN}
    template = template_of(version)
    return FastTokenizer(
        file.parent,
        content=backend.to_str(),
        settings=settings | ({"chat_template": template} if template else {}),
    )


def from_tekken(tekken: _vocabulary.Tekken) -> Tokenizer:
    """Return the tokenizer of a tekken file: bytes, split by its pattern, merged by rank."""
    written = [_characters(word) for word in tekken.words]
    vocab = {token: i for i, token in enumerate(tekken.special)}
    vocab |= {token: i + len(tekken.special) for i, token in enumerate(written)}
    ranks = {token: i for i, token in enumerate(written)}
    model = BPE(vocab=vocab, merges=_merges(written, ranks), ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = PreSequence(
        [
            Split(Regex(tekken.pattern), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = ByteLevelDecoder()
    return _with_special(tokenizer, tekken.special)


def from_pieces(pieces: Sequence[_vocabulary.SentencePiece]) -> Tokenizer:
    """Return the tokenizer of a sentencepiece model: characters, merged by score, then bytes."""
    vocab = {piece.text: i for i, piece in enumerate(pieces)}
    words = [piece for piece in pieces if piece.kind == 1]
    words.sort(key=lambda piece: (-piece.score, vocab[piece.text]))
    written = [piece.text for piece in words]
    ranks = {token: i for i, token in enumerate(written)}
    model = BPE(
        vocab=vocab,
        merges=_merges(written, ranks),
        unk_token=UNKNOWN,
        fuse_unk=True,
        byte_fallback=any(piece.kind == 6 for piece in pieces),
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = NormalizerSequence([Prepend(SPACE), ReplaceText(" ", SPACE)])
    tokenizer.decoder = DecoderSequence(
        [Replace(SPACE, " "), ByteFallback(), Fuse(), Strip(content=" ", left=1)]
    )
    return _with_special(tokenizer, [p.text for p in pieces if p.kind in (2, 3)])


def _with_special(tokenizer: Tokenizer, special: Iterable[str]) -> Tokenizer:
    """Mark the special tokens, and put <s> before every text. Mutates: tokenizer"""
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    bos = tokenizer.token_to_id(BOS)
    if bos is not None:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1", special_tokens=[(BOS, bos)]
        )
    return tokenizer


def _merges(tokens: Sequence[str], ranks: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs that make each token, the tokens in the order given."""
    merges: list[tuple[str, str]] = []
    for token in tokens:
        halves = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += pairs
    return merges


def _characters(word: bytes) -> str:
    """Return the printable characters for bytes in byte-level vocabularies."""
    return "".join(_CHARACTERS[byte] for byte in word)


def _byte_characters() -> list[str]:
    """Return the character for each byte. Source: Radford et al. 2019, section 2.2: printable
    Latin-1 bytes map to themselves, the others to the characters from 256 on, in order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_CHARACTERS = _byte_characters()
