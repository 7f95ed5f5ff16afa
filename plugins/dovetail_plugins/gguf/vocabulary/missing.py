"""What a GGUF file does not say of its vocabulary, from what is known of the model's family.

Files of before April 2024 have no `tokenizer.ggml.pre`; some have no chat template, no types of
tokens, or no first and last token. What follows from the architecture and the vocabulary is added,
and one line of the log says so. What does not follow stays missing. Imports no torch.
Sources: the pre-tokenizers that llama.cpp's converters write for each architecture, its defaults
for SentencePiece (src/llama-vocab.cpp), and the turns that the models' cards describe.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
ARCHITECTURE = "general.architecture"
PAIRS, PIECES = "gpt2", "llama"
"""`tokenizer.ggml.model`: byte pairs, and SentencePiece's pieces."""
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_MARKED = re.compile(
    r"<\|[^|<>\s]+\|>|<\uff5c[^\uff5c]+\uff5c>|\[/?[A-Z]+(?:_[A-Z]+)*\]|<\[[^\[\]]+\]>"
    r"|</?(?:s|unk|pad|bos|eos|mask|sep|cls|start_of_turn|end_of_turn|fim_\w+|unused\d+)>"
)
"""Texts of tokens that no text of people has: they are control tokens."""
_NAMES_OF_IDS = (
    *("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id"),
    *("seperator_token_id", "padding_token_id", "cls_token_id", "mask_token_id"),
)
_PIECES_IDS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
"""SentencePiece's own numbers, which llama.cpp takes where a file has none."""
_FIRST = ("<|begin_of_text|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<s>", "<bos>")
_LAST = (
    *("<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    *("<|endoftext|>", "</s>", "<eos>"),
)
_TEXTS = {"bos_token_id": _FIRST, "eos_token_id": _LAST, "unknown_token_id": ("<unk>",)}
"""The texts of tokens that settings name, the surest first."""
_PRE: dict[str, str] = {
    **dict.fromkeys(("qwen", "qwen2", "qwen2moe", "qwen2vl"), "qwen2"),
    **dict.fromkeys(("qwen3", "qwen3moe", "qwen3next", "qwen3vl", "qwen3vlmoe"), "qwen2"),
    **dict.fromkeys(("qwen35", "qwen35moe"), "qwen35"),
    **dict.fromkeys(("gpt2", "gptneox", "gptj"), "gpt-2"),
    **dict.fromkeys(("olmo", "olmoe"), "olmo"),
    **dict.fromkeys(("starcoder", "starcoder2"), "starcoder"),
    **dict.fromkeys(("granite", "granitemoe"), "refact"),
    **dict.fromkeys(("command-r", "cohere2"), "command-r"),
    **dict.fromkeys(("glm4", "glm4moe"), "glm4"),
    **dict.fromkeys(("lfm2", "lfm2moe"), "lfm2"),
    **dict.fromkeys(("dbrx", "phi3"), "dbrx"),
    **{name: name for name in ("falcon", "bloom", "mpt", "exaone", "exaone4", "llama4")},
    **{name: name for name in ("refact", "codeshell")},
    **{name: name for name in ("falcon-h1", "hunyuan-dense", "minimax-m2", "exaone-moe")},
    **{name: name for name in ("bailingmoe", "bailingmoe2", "modern-bert")},
    "phi2": "phi-2",
    "gpt-oss": "gpt-4o",
    "chatglm": "chatglm-bpe",
    "hunyuan-moe": "hunyuan",
    "seed_oss": "seed-coder",
    "kimi-linear": "kimi-k2",
}
"""Architecture -> how its vocabularies of byte pairs cut words."""
_DEEPSEEK = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
_PRE_BY_TOKENS: tuple[tuple[tuple[str, ...], range, str], ...] = (
    (("<|begin_of_text|>",), range(128_000, 129_000), "llama-bpe"),
    ((_DEEPSEEK,), range(151_000, 153_000), "deepseek-r1-qwen"),
    ((_DEEPSEEK,), range(128_200, 128_300), "llama-bpe"),
    ((_DEEPSEEK,), range(128_300, 130_000), "deepseek-v3"),
    ((_DEEPSEEK,), range(100_000, 103_000), "deepseek-llm"),
    ((_DEEPSEEK,), range(32_000, 33_000), "deepseek-coder"),
    (("<|im_start|>", "<|endoftext|>"), range(151_000, 153_000), "qwen2"),
    (("<|im_start|>", "<jupyter_start>"), range(49_000, 50_000), "smollm"),
    (("[INST]", "[/INST]"), range(131_000, 132_000), "tekken"),
)
"""Tokens and sizes of vocabularies that several architectures have -> how they cut words."""
_OF_SEVERAL = ("llama", "qwen2", "deepseek", "deepseek2", "deci", "bitnet")
"""Architectures that came with several vocabularies."""


_BEGIN = "{{ bos_token }}"


def _turns(start: str, middle: str, end: str, *, first: str = "", text: str = "") -> str:
    """Return a chat template whose messages are start + role + middle + content + end; `text` is a
    filter of contents."""
    return (
        f"{first}{{% for message in messages %}}"
        f"{{{{ '{start}' + message['role'] + '{middle}' + (message['content']{text}) + '{end}' }}}}"
        f"{{% endfor %}}{{% if add_generation_prompt %}}{{{{ '{start}assistant{middle}' }}}}"
        "{% endif %}"
    )


def _without_system(user: str, assistant: str, asks: str = "") -> str:
    """Return a chat template that puts a system message before the text of the next one. `user` and
    `assistant` are expressions in which `text` is a message's text, `asks` begins an answer."""
    return (
        _BEGIN + "{% set found = namespace(system='') %}{% for message in messages %}"
        "{% set text = found.system + message['content'] %}"
        "{% if message['role'] == 'system' %}{% set found.system = text + '\\n\\n' %}"
        "{% else %}{% set found.system = '' %}{% if message['role'] == 'assistant' %}"
        f"{{{{ {assistant} }}}}{{% else %}}{{{{ {user} }}}}{{% endif %}}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '{asks}' }}}}{{% endif %}}"
    )


_GEMMA = _without_system(
    r"'<start_of_turn>user\n' + (text | trim) + '<end_of_turn>\n'",
    r"'<start_of_turn>model\n' + (text | trim) + '<end_of_turn>\n'",
    r"<start_of_turn>model\n",
)
_MISTRAL = _without_system("'[INST]' + text + '[/INST]'", "text + eos_token")
_DEEPSEEK_TURNS = _without_system(
    "'<\uff5cUser\uff5c>' + text",
    "'<\uff5cAssistant\uff5c>' + text + eos_token",
    "<\uff5cAssistant\uff5c>",
)
_LLAMA = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_LLAMA_TURNS = _turns(_LLAMA[0], rf"{_LLAMA[1]}\n\n", _LLAMA[2], first=_BEGIN, text=" | trim")
_TEMPLATES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "Llama 3's",
        _LLAMA,
        _turns(_LLAMA[0], _LLAMA[1] + r"\n\n", _LLAMA[2], first=_BEGIN, text=" | trim"),
    ),
    ("Gemma's", ("<start_of_turn>", "<end_of_turn>"), _GEMMA),
    ("Phi-3's", ("<|user|>", "<|assistant|>", "<|end|>"), _turns("<|", r"|>\n", r"<|end|>\n")),
    ("DeepSeek's", ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"), _DEEPSEEK_TURNS),
    ("ChatML", ("<|im_start|>", "<|im_end|>"), _turns("<|im_start|>", r"\n", r"<|im_end|>\n")),
    ("Mistral's", ("[INST]", "[/INST]"), _MISTRAL),
)
"""Name, the tokens of its turns, template: the first whose tokens are all in a vocabulary."""
_OTHER_TURNS = ("<|channel|>", "[SYSTEM_PROMPT]")
"""Tokens of vocabularies whose turns none of these templates has."""


def completed(path: Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a file's settings with what follows of its vocabulary from the others; unchanged
    without one. Logs one line about what was added."""
    found, said = filled(settings)
    if said:
        _tell(f"{path.name} lacks {', '.join(said)}")
    return found


def filled(settings: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return a file's settings with what follows from the others, and words about each of these."""
    tokens = settings.get(f"{PREFIX}tokens")
    if not isinstance(tokens, list) or not {*map(type, tokens)} <= {str}:
        return settings, []
    found, said = dict(settings), list[str]()
    for find in (_model, _ids, _kinds, _pre, _template):
        more, how = find(found, tokens)
        found.update(more)
        said += how
    return found, said


@cache
def _tell(text: str) -> None:
    """Log a line, once in a process."""
    log.warning("%s", text)


_Found = tuple[Mapping[str, Any], Sequence[str]]
"""Settings that are added, and words about them."""
_NOTHING: _Found = ({}, ())


def _added(key: str, value: Any, how: str) -> _Found:
    return {key: value}, (f"{key} ({how} it is {value})",)


def _model(settings: Mapping[str, Any], tokens: Sequence[str]) -> _Found:
    """Find the kind of the vocabulary: scores are SentencePiece's, merges those of byte pairs."""
    key = f"{PREFIX}model"
    kinds = {"scores": PIECES, "merges": PAIRS}
    known = [kind for name, kind in kinds.items() if settings.get(f"{PREFIX}{name}")]
    if key in settings or len(known) != 1:
        return _NOTHING
    return _added(key, known[0], "by its scores or merges")


def _ids(settings: Mapping[str, Any], tokens: Sequence[str]) -> _Found:
    """Find the first and the last token."""
    kind, found = settings.get(f"{PREFIX}model"), dict[str, int]()
    if kind == PIECES:
        found = {name: n for name, n in _PIECES_IDS.items() if n < len(tokens)}
    if kind in (PIECES, PAIRS):
        numbers = {text: i for i, text in enumerate(tokens)}
        for name, texts in _TEXTS.items():
            number = next((numbers[text] for text in texts if text in numbers), None)
            found |= {} if number is None else {name: number}
    missing = {name: n for name, n in found.items() if f"{PREFIX}{name}" not in settings}
    if kind == PAIRS and "eos_token_id" not in missing:
        missing = {}  # it says which tokens are special; some models have no first one
    words = [f"{PREFIX}{name} ({tokens[n]})" for name, n in missing.items()]
    return {f"{PREFIX}{name}": n for name, n in missing.items()}, words


def _kinds(settings: Mapping[str, Any], tokens: Sequence[str]) -> _Found:
    """Find which tokens are control tokens: those with a name in the settings, and those whose text
    is marked as such."""
    key = f"{PREFIX}token_type"
    if settings.get(key):
        return _NOTHING
    unknown = settings.get(f"{PREFIX}unknown_token_id")
    named = {settings.get(f"{PREFIX}{name}") for name in _NAMES_OF_IDS}
    kinds = [_kind(text) for text in tokens]
    kinds = [CONTROL if i in named else kind for i, kind in enumerate(kinds)]
    if isinstance(unknown, int) and 0 <= unknown < len(kinds):
        kinds[unknown] = UNKNOWN
    count = sum(kind == CONTROL for kind in kinds)
    return {key: kinds}, (f"{key} ({count} control tokens by their texts)",)


def _kind(text: str) -> int:
    if _BYTE.fullmatch(text):
        return BYTE
    return CONTROL if _MARKED.fullmatch(text) else NORMAL


def _pre(settings: Mapping[str, Any], tokens: Sequence[str]) -> _Found:
    """Find how text is cut into words, of byte pairs."""
    key = f"{PREFIX}pre"
    if settings.get(key) or settings.get(f"{PREFIX}model") != PAIRS:
        return _NOTHING
    architecture = str(settings.get(ARCHITECTURE))
    known = set(tokens)
    by_tokens = (
        name
        for texts, sizes, name in _PRE_BY_TOKENS
        if len(tokens) in sizes and _has_all(known, texts)
    )
    name = next(by_tokens, None) if architecture in _OF_SEVERAL else None
    if name is not None:
        return _added(key, name, "by its vocabulary")
    if architecture in _PRE:
        return _added(key, _PRE[architecture], "by its architecture")
    return _NOTHING


def _template(settings: Mapping[str, Any], tokens: Sequence[str]) -> _Found:
    """Find a chat template whose turns the vocabulary has."""
    known = set(tokens)
    if settings.get(TEMPLATE) or not known.isdisjoint(_OTHER_TURNS):
        return _NOTHING
    for name, texts, template in _TEMPLATES:
        if _has_all(known, texts):
            return {TEMPLATE: template}, (f"{TEMPLATE} ({name} is taken, by its vocabulary)",)
    return _NOTHING


def _has_all(known: set[str], texts: Iterable[str]) -> bool:
    return known.issuperset(texts)
