"""Which pre-tokenizer a vocabulary of byte pairs has whose file does not say it: files made before
May 2024. Known by the architecture, or by tokens that only one family has.

Source: the tokenizer.json of these families' models.
"""

from __future__ import annotations

from collections.abc import Sequence

_BY_ARCHITECTURE: dict[str, tuple[str, ...]] = {
    "qwen2": ("qwen", "qwen2", "qwen2moe"),
    "command-r": ("command-r",),
    "starcoder": ("starcoder", "starcoder2"),
    "refact": ("refact",),
    "codeshell": ("codeshell",),
    "falcon": ("falcon",),
    "bloom": ("bloom",),
    "gpt-2": ("gpt2", "gptj", "gptneox", "mpt"),
    "phi-2": ("phi2",),
    "olmo": ("olmo",),
    "dbrx": ("dbrx",),
}
_LLAMA3, _DEEPSEEK = "<|begin_of_text|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
_QWEN = "<|im_start|>"
_DEEPSEEKS = ((100_000, "deepseek-coder"), (110_000, "deepseek-llm"), (1 << 30, "deepseek-v3"))
"""Tokens of DeepSeek's vocabularies, fewer than -> kind."""
_QWEN_TOKENS, _STABLELM2_TOKENS = 150_000, 100_000


def assumed_kind(architecture: str, tokens: Sequence[str]) -> str | None:
    """Return the kind of pre-tokenizer of a vocabulary, None if it is not known."""
    if architecture == "stablelm":
        return "stablelm2" if len(tokens) >= _STABLELM2_TOKENS else "gpt-2"
    for kind, architectures in _BY_ARCHITECTURE.items():
        if architecture in architectures:
            return kind
    texts = frozenset(tokens)
    if _LLAMA3 in texts:
        return "llama-bpe"
    if _DEEPSEEK in texts:
        return next(kind for size, kind in _DEEPSEEKS if len(tokens) < size)
    return "qwen2" if _QWEN in texts and len(tokens) >= _QWEN_TOKENS else None
