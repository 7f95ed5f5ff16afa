"""How text is cut into words before byte pairs are merged: the kinds `tokenizer.ggml.pre` names.

A kind is the expressions that cut one after the other, as the models' own tokenizer.json has them.
Source: those files, and llama_vocab_pre_type in
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp
"""

from __future__ import annotations

from dataclasses import dataclass

_SHORT = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_SHORT}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_LETTERS = rf"{_BEFORE}\p{{L}}+"
_LLAMA3 = rf"(?i:{_SHORT})|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"(?i:{_SHORT})|{_LETTERS}|\p{{N}}|{_REST}"
_QWEN35 = (
    rf"(?i:{_SHORT})|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_MINICPM5 = rf"(?i:{_SHORT})|{_LETTERS}|\p{{N}}+|{_REST}"
_JAIS2_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_JAIS2 = (
    rf"(?i:{_SHORT})|{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    rf"|\s*[\r\n]+|{_JAIS2_SPACES}|\s{{1}}"
)
_SEED = rf"(?i:{_SHORT})|{_LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE_MOE = (
    rf"(?i:{_SHORT})|{_BEFORE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_END = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_CASES = rf"{_BEFORE}{_UPPER}*{_LOWER}+(?i:{_SHORT})?|{_BEFORE}{_UPPER}+{_LOWER}*(?i:{_SHORT})?"
_O200K = rf"{_CASES}|\p{{N}}{{1,3}}|{_END}"
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_END}"
_YOUTU = rf"{_CASES}|\p{{N}}|{_END}"
_UPPER_NOT_HAN = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER_NOT_HAN = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI = (
    rf"[\p{{Han}}]+|{_BEFORE}{_UPPER_NOT_HAN}*{_LOWER_NOT_HAN}+(?i:{_SHORT})?"
    rf"|{_BEFORE}{_UPPER_NOT_HAN}+{_LOWER_NOT_HAN}*(?i:{_SHORT})?|\p{{N}}{{1,3}}|{_REST}"
)

_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASCII_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
"""Threes of digits, counted from a number's end."""
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+"
)
_V3_WORDS = rf"{_ASCII_SIGN}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_V3 = rf"{_V3_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_SPARK = rf"{_V3_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
_YOUTU_SIGNS = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_HAN_KANA}"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters that have a case, as the expression of the DeepSeek LLM spells them."""
_WIDE_SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_SIGNS = r"[\p{P}\$\+<=>\^~\|]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`composes`: characters come in their composed form (NFC). `takes_whole`: a word that is a
    token needs no merges. `begins`: a text begins with the first token unless the file says
    otherwise. `ranks`: a file without merges means that tokens are made in the order of their
    numbers. `byte_cuts` cut words whose bytes are written in GPT-2's letters, some of which are
    numbers ("\u00bc"). `raw`: tokens are text as SentencePiece writes it, not bytes in GPT-2's
    letters."""

    cuts: tuple[str, ...]
    composes: bool = False
    takes_whole: bool = False
    begins: bool = False
    ranks: bool = False
    byte_cuts: tuple[str, ...] = ()
    raw: bool = False


GEMMA4 = "gemma4"
_KINDS: dict[Kind, tuple[str, ...]] = {
    Kind(cuts=(_GPT2,)): (
        "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "jina-es", "jina-de",
        "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "roberta-bpe", "gigachat",
        "a.x-4.0", "mellum", "modern-bert", "exaone4", "granite-docling",
    ),
    Kind(cuts=(_SIGNS, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): ("default",),
    Kind(cuts=(r"\p{N}", _GPT2)): (
        "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b",
        "mellum2",
    ),
    Kind(cuts=(_LLAMA3,), takes_whole=True, begins=True): (
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano",
    ),
    Kind(cuts=(_LLAMA3,)): ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    Kind(cuts=(_QWEN2,), composes=True): ("qwen2",),
    Kind(cuts=(_QWEN2,)): (
        "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "kormo", "f2llmv2", "solar-open",
        "grok-2",
    ),
    Kind(cuts=(_O200K,)): ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    Kind(cuts=(_TEKKEN,), takes_whole=True, begins=True): ("tekken",),
    Kind(
        cuts=("[\r\n]", rf"\s?[{_CASED}]+", rf"\s?[{_WIDE_SIGNS}]+", r"\s+$", _HAN_HANGUL, r"\p{N}")
    ): ("deepseek-llm",),
    Kind(cuts=("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")): ("deepseek-coder",),
    Kind(cuts=(r"\p{N}{1,3}", _HAN_KANA, _V3)): (
        "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4",
    ),
    Kind(cuts=(r"\p{N}{1,3}", _HAN_KANA, _SPARK, r"\p{N}")): ("spark2_5",),
    Kind(
        cuts=(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2), byte_cuts=(r"\p{N}+", "[0-9][0-9][0-9]")
    ): ("falcon",),
    Kind(cuts=(_QWEN35,), composes=True): ("qwen35",),
    Kind(cuts=(r"\p{N}{1,3}", _MINICPM5), takes_whole=True): ("minicpm5",),
    Kind(cuts=(_JAIS2,)): ("jais-2",),
    Kind(cuts=(_SEED,)): ("seed-coder",),
    Kind(cuts=(_BAILING,)): ("bailingmoe", "bailingmoe2", "llada-moe"),
    Kind(cuts=(_EXAONE_MOE,)): ("exaone-moe",),
    Kind(cuts=(rf"{_LETTERS}|\p{{N}}|{_REST}",)): ("ufakzeka",),
    Kind(cuts=(_THREES, _ASIAN, _V3)): ("afmoe",),
    Kind(cuts=(r"[^\n]+|[\n]+", _QWEN2)): ("laguna",),
    Kind(cuts=(r"\d{1,3}(?=(?:\d{3})*\b)", _O200K)): ("tiny_aya", "cohere2moe"),
    Kind(cuts=(_YOUTU_SIGNS, _YOUTU), takes_whole=True): ("youtu",),
    Kind(cuts=(_KIMI,), ranks=True): ("kimi-k2",),
    Kind(cuts=(_BLOOM,)): ("bloom", "poro-chat", "gpt3-finnish"),
    Kind(cuts=(_BLOOM, r"\p{N}")): ("viking",),
    Kind(cuts=(r"\p{N}+", r"(?=(\d{3})+(?!\d))")): ("superbpe",),
    Kind(cuts=(r"[^\n]+|[\n]+",), raw=True, begins=True): (GEMMA4, "granite-embed-multi-311m"),
    Kind(cuts=(r"[^\n]+|[\n]+",), raw=True): ("sarvam-moe",),
}  # fmt: skip
KINDS = {name: kind for kind, names in _KINDS.items() for name in names}
"""tokenizer.ggml.pre -> kind."""
