"""The tokenizer settings of a GGUF file from a checkpoint's tokenizer.json.

Byte pairs become "gpt2" with the kind of cuts that encodes a probe as the checkpoint does; byte
pairs that fall back to bytes are SentencePiece's, and become "llama". Source: the tokenizer keys of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from dovetail.errors import ConfigError
from dovetail.json_values import json_value
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.vocabulary.read import TEMPLATE, tokenizer_of
from dovetail_plugins.gguf.vocabulary.splits import KINDS

log = logging.getLogger(__name__)

PROBE = (
    "Hello,  World's 12345 tests!\n\n  def f(x):\n\treturn x**2 + 3.14  # naïve Ärger\r\n"
    "I'LL say: don't \u4f60\u597d\uff01 \u0421\u043b\u043e\u0432\u043e e\u0301 "
    "camelCase SNAKE_case https://a.b/c?d=1&e=2 🙂🙂 7,000.50 \u00a0end   "
)
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_PREFIX = "tokenizer.ggml."


def tokenizer_settings(folder: Path, vocab_size: int) -> dict[str, Any]:
    """Return the settings of a checkpoint's tokenizer. Raises: ConfigError"""
    file = folder / "tokenizer.json"
    try:
        raw = file.read_text(encoding="utf-8")
        content = json_value(raw)
        real = Tokenizer.from_str(raw)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot be read: {error}.",
            where=str(file),
            fix="a GGUF file holds the tokenizer: put its tokenizer.json into the folder.",
        ) from error
    if content["model"]["type"] != "BPE":
        raise ConfigError(
            f"tokenizers of the kind {content['model']['type']} are not written into GGUF.",
            where=str(file),
            fix="choose a method that keeps tokenizer.json: int8, int4, fp8, gptq, awq.",
        )
    config = _json(folder / "tokenizer_config.json")
    tokens, kinds = _tokens(content, config, vocab_size)
    settings = {"tokens": tokens, "token_type": kinds, **_ends(real, tokens, config)}
    if content["model"].get("byte_fallback"):
        settings |= _pieces(content, tokens)
    else:
        settings |= {"model": "gpt2", "merges": [" ".join(pair) for pair in _merges(content)]}
        settings["pre"] = _kind_of(real, settings)
    return {f"{_PREFIX}{name}": value for name, value in settings.items()} | _template(
        folder, config
    )


def _json(file: Path) -> dict[str, Any]:
    return dict(json_value(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _merges(content: Mapping[str, Any]) -> list[list[str]]:
    return [m.split(" ", 1) if isinstance(m, str) else m for m in content["model"]["merges"]]


def _tokens(
    content: Mapping[str, Any], config: Mapping[str, Any], vocab_size: int
) -> tuple[list[str], list[int]]:
    """Return the texts and the kinds of all rows of the token table."""
    texts = {number: text for text, number in content["model"]["vocab"].items()}
    kinds = dict.fromkeys(texts, NORMAL)
    if content["model"].get("byte_fallback"):
        kinds |= {n: BYTE for n, text in texts.items() if text.startswith("<0x") and len(text) == 6}
    for token in content["added_tokens"]:
        texts[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token["special"] else USER
    unknown = content["model"].get("unk_token") or _text(config.get("unk_token"))
    kinds |= {number: UNKNOWN for number, text in texts.items() if text == unknown}
    size = max(vocab_size, max(texts) + 1)
    return (
        [texts.get(number, f"[PAD{number}]") for number in range(size)],
        [kinds.get(number, UNUSED) for number in range(size)],
    )


def _text(token: Any) -> str | None:
    """Return the text of a token, which is plain text in configs or a mapping with rules."""
    return token.get("content") if isinstance(token, Mapping) else token


def _ends(real: Tokenizer, tokens: list[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of tokens with a meaning, and whether texts begin or end with one."""
    named = {ours: _text(config.get(theirs)) for theirs, ours in _NAMED.items()}
    found: dict[str, Any] = {n: tokens.index(t) for n, t in named.items() if t in tokens}
    around = real.encode("a").ids
    found["add_bos_token"] = bool(around) and around[0] == found.get("bos_token_id")
    found["add_eos_token"] = bool(around) and around[-1] == found.get("eos_token_id")
    return found


def _pieces(content: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """Return SentencePiece's settings: a piece is scored by when it is merged."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(_merges(content)):
        ranks.setdefault(left + right, rank)
    scores = [-float(ranks.get(text, len(ranks))) for text in tokens]
    has_space = '"prepend"' in json.dumps([content.get("normalizer"), content.get("pre_tokenizer")])
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": has_space}


def _kind_of(real: Tokenizer, settings: Mapping[str, Any]) -> str:
    """Return the kind of cuts that encodes the probe most like the checkpoint's tokenizer."""
    wanted = real.encode(PROBE, add_special_tokens=False).ids
    best, fewest_wrong = "default", len(wanted) + 1
    for name in _candidates(real):
        written = {f"{_PREFIX}{k}": v for k, v in {**settings, "pre": name}.items()}
        written[TEMPLATE] = "-"  # none is looked for: it has no part in how texts are split
        text, _ = tokenizer_of(GgufModel(path=Path("new.gguf"), settings=written, extents=()))
        ids = Tokenizer.from_str(text).encode(PROBE, add_special_tokens=False).ids
        wrong = 0 if ids == wanted else 1 + abs(len(ids) - len(wanted))
        if wrong < fewest_wrong:
            best, fewest_wrong = name, wrong
    if fewest_wrong:
        log.warning(
            "GGUF has no pre-tokenizer that splits text like this tokenizer; %r is the "
            "nearest. Serve the file with --tokenizer and the folder of the source "
            "checkpoint.",
            best,
        )
    return best


def _splits(expressions: Iterable[str]) -> list[Any]:
    return [Split(Regex(one), "isolated") for one in expressions]


def _candidates(real: Tokenizer) -> list[str]:
    """Return the names of the kinds that cut the probe as the tokenizer does; if none does, all."""
    kinds = {kind: name for name, kind in reversed(KINDS.items()) if not kind.raw}
    names = [name for name in KINDS if name in kinds.values()]
    steps: Any = real.pre_tokenizer
    if steps is None:
        return names
    text = real.normalizer.normalize_str(PROBE) if real.normalizer else PROBE
    letters = ByteLevel(add_prefix_space=False, use_regex=False)
    wanted = [word for word, _ in steps.pre_tokenize_str(text)]
    alike = [
        name
        for kind, name in kinds.items()
        if wanted
        == [
            word
            for word, _ in Sequence(
                [*_splits(kind.cuts), letters, *_splits(kind.byte_cuts)]
            ).pre_tokenize_str(text)
        ]
    ]
    return [name for name in names if name in alike] or names


def _template(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat template, the one by its own file first."""
    file = folder / "chat_template.jinja"
    found = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    return {TEMPLATE: found} if isinstance(found, str) else {}
