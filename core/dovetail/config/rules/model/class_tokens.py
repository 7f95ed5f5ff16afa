"""Generating models used as classifiers, with tokens of the vocabulary as their classes.

A reranker trained to answer "yes" or "no" needs only the logits of these two tokens. A process
reward model needs the logits of its marks for good and bad steps. Both are rows of the LM head.

Sources: Zhang et al., Qwen3 Embedding, 2025; Wang et al., Math-Shepherd, 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.rules.model.architectures import stem
from dovetail.config.rules.pooling.pooler_config import POOLER_CONFIG, PoolerConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import LOGITS, MAKES_VECTORS, ModelSpec

WORDS = "classifier_from_token"
OVERRIDE = f"--hf-overrides.{WORDS}"
_METHOD = "method"
_DIFFERENCE, _ROWS = "from_2_way_softmax", "no_post_processing"
_ORIGINAL = "is_original_qwen3_reranker"


def with_class_tokens(
    model_config: ModelConfig, model: ModelSpec, pooler: PoolerConfig
) -> ModelSpec:
    """Return the model with class tokens, if they are requested.

    That is by `classifier_from_token` in its config, or by `returned_token_ids` for a generating
    model. Raises: ConfigError naming what is wrong
    """
    facts = model.hf_config
    if model.head in (LOGITS, *MAKES_VECTORS):
        return model
    words = facts.get(WORDS)
    if words:
        tokens = _numbered(_tokenizer_folder(model_config, model), words)
        is_difference = bool(facts.get(_ORIGINAL)) or facts.get(_METHOD) == _DIFFERENCE
        _verify_method(facts.get(_METHOD))
        return _with_tokens(model, tokens, is_difference=is_difference)
    _, stored = stem(model.architecture)
    if pooler.returned_token_ids and stored == LOGITS:
        return _with_tokens(model, pooler.returned_token_ids, is_difference=False)
    return model


def _with_tokens(model: ModelSpec, tokens: Sequence[int], *, is_difference: bool) -> ModelSpec:
    """Return the model with these classes. Raises: ConfigError"""
    if is_difference and len(tokens) != 2:
        raise ConfigError(
            f"names {len(tokens)} tokens.",
            where=OVERRIDE,
            fix='give two, the one against first, as ["no", "yes"].',
        )
    if any(not 0 <= token < model.vocab_size for token in tokens):
        raise ConfigError(
            f"must be numbers of tokens, 0 to {model.vocab_size - 1}.",
            where=f"{POOLER_CONFIG}.returned_token_ids",
        )
    named = {key: value for key, value in model.hf_config.items() if key not in ("id2label",)}
    return msgspec.structs.replace(
        model,
        hf_config={**named, "num_labels": 1 if is_difference else len(tokens)},
        class_tokens=tuple(tokens),
        is_class_difference=is_difference,
    )


def _verify_method(method: Any) -> None:
    """Raises: ConfigError for an unknown method"""
    if method not in (None, _DIFFERENCE, _ROWS):
        raise ConfigError(
            f'there is no "{method}".',
            where=f"--hf-overrides.{_METHOD}",
            fix=f"there are {_DIFFERENCE} and {_ROWS}.",
        )


def _tokenizer_folder(model_config: ModelConfig, model: ModelSpec) -> Path:
    asked = model_config.tokenizer
    return Path(asked) if asked and Path(asked).is_dir() else Path(model.path)


def _numbered(folder: Path, words: Any) -> tuple[int, ...]:
    """Return token ids. Raises: ConfigError for a word that is not a token"""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError("must be a list of words.", where=OVERRIDE)
    content = read_json(folder / "tokenizer.json")
    stored = content.get("model", {}).get("vocab", {})
    if isinstance(stored, list):  # pairs of a word and its weight
        stored = {pair[0]: number for number, pair in enumerate(stored)}
    added = {token["content"]: token["id"] for token in content.get("added_tokens", ())}
    known = {**stored, **added}
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ConfigError(
            f"the tokenizer has no token {', '.join(map(repr, unknown))}.",
            where=OVERRIDE,
            fix="name tokens as tokenizer.json writes them.",
        )
    return tuple(int(known[word]) for word in words)
