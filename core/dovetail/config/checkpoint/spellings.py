"""Settings with two names in config.json: normalized before anything reads them.

In a file, the name that transformers prefers wins. An override replaces the setting under any of
its names. Knows only pairs of names; `rope` knows RoPE settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.config.checkpoint.model_facts import facts_of, older_kinds, other_names
from dovetail.config.checkpoint.rope import one_rope, overridden_rope
from dovetail.config.sections.convert import merge_deep

DTYPES = ("dtype", "torch_dtype")
_KINDS = ("layer_types", "mtp_layer_types")
_OF_THE_WHOLE = ("architectures", "auto_map", "model_type")
WHOLE_FIRST = (
    *("bos_token_id", "eos_token_id", "quantization_config", "tie_word_embeddings", *DTYPES),
)
"""Settings for which the top level wins over the text part, as in transformers."""


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json's content with alternative names replaced by the model type's own.

    As in transformers, the alternative name wins if a file has both. A usual name that means the
    encoder's size in this type is dropped: here such names mean the decoder's.
    """
    names = other_names(config)
    stated = {own: config[other] for other, own in names.items() if config.get(other) is not None}
    left = {key: value for key, value in config.items() if not _is_encoders(names.get(key, ""))}
    return one_rope(_with_kinds({**left, **stated}))


def _is_encoders(own: str) -> bool:
    return own.startswith(("encoder_", "num_encoder_"))


def _with_kinds(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings with current names of layer types."""
    lists = {key: config[key] for key in _KINDS if isinstance(config.get(key), list)}
    older = older_kinds() if lists else {}
    named = {key: [older.get(str(one), one) for one in lists[key]] for key in lists}
    return config | named


def override_with_part(
    config: dict[str, Any], part: dict[str, Any] | None, more: Mapping[str, Any]
) -> None:
    """Merge `more` into config.json's content and its text `part`, if it has one. Settings that are
    not only about the whole apply to the text. Those that `more` has for the part itself win.
    Mutates: config, part"""
    if part is not None:
        override(part, {k: v for k, v in more.items() if _is_of_part(k, config, part)})
    override(config, more)
    of_part: Mapping[str, Any] = next(
        (v for k, v in more.items() if part and config.get(k) is part), {}
    )
    for key in WHOLE_FIRST:
        names = set(_same(key, config))
        if names & set(of_part) and not names & set(more):
            config.pop(key, None)


def _is_of_part(key: str, config: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    if key in _OF_THE_WHOLE:
        return False
    if any(name in part for name in (key, *_same(key, part))):
        return True
    return key not in config and not key.endswith("_config")


def override(config: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Merge `more` into config.json's content, objects key by key. Mutates: config."""
    names = {**config, **more}
    for key in more:
        for other in set(_same(key, names)) - set(more):
            config.pop(other, None)
    left = overridden_rope(config, more)
    for key, value in left.items():
        if isinstance(value, Mapping) and isinstance(config.get(key), dict):
            override(config[key], value)
        else:
            merge_deep(config, {key: value})


def _same(key: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the other names of a setting in this config's model type."""
    if key in DTYPES:
        yield from DTYPES
    names = other_names(config)
    usual = {k: v for k, v in facts_of(config).attribute_map.items() if k not in names}
    for pairs in (names, usual):
        own = pairs.get(key, key)
        yield from (name for name, stored in pairs.items() if stored == own)
        yield own
