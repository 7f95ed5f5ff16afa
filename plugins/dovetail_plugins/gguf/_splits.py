"""How text is cut into words before byte pairs are merged: the kinds `tokenizer.ggml.pre` names.

A kind is the expressions that cut one after the other, as the models' own tokenizer.json has them.
Source: those files, and llama_vocab_pre_type in
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp
"""

from __future__ import annotations

from dataclasses import dataclass

_SHORT = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_SHORT}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"(?i:{_SHORT})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"(?i:{_SHORT})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_END = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_O200K = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+(?i:{_SHORT})?|{_BEFORE}{_UPPER}+{_LOWER}*(?i:{_SHORT})?"
    rf"|\p{{N}}{{1,3}}|{_END}"
)
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_END}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`composes`: characters come in their composed form (NFC). `takes_whole`: a word that is a
    token needs no merges. `begins`: a text begins with the first token unless told otherwise."""

    cuts: tuple[str, ...]
    composes: bool = False
    takes_whole: bool = False
    begins: bool = False


_KINDS: dict[Kind, tuple[str, ...]] = {
    Kind(cuts=(_GPT2,)): (
        "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "jina-es", "jina-de",
        "jina-v1-en", "roberta-bpe", "gigachat",
    ),
    Kind(cuts=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): ("default",),
    Kind(cuts=(r"\p{N}", _GPT2)): (
        "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b",
    ),
    Kind(cuts=(_LLAMA3,), takes_whole=True, begins=True): (
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    ),
    Kind(cuts=(_LLAMA3,)): ("dbrx", "smaug-bpe"),
    Kind(cuts=(_QWEN2,), composes=True): ("qwen2",),
    Kind(cuts=(_QWEN2,)): ("deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"),
    Kind(cuts=(_O200K,)): ("gpt-4o", "llama4"),
    Kind(cuts=(_TEKKEN,), takes_whole=True): ("tekken",),
}  # fmt: skip
KINDS = {name: kind for kind, names in _KINDS.items() for name in names}
"""tokenizer.ggml.pre -> kind."""
