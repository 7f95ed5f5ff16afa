"""The config.json of a text model and its projector together. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.config.checkpoint.media_tokens import PROCESSOR
from dovetail_plugins.gguf.blocks.types import FLOAT_DTYPES
from dovetail_plugins.gguf.projectors.find import Found, projector_of
from dovetail_plugins.gguf.projectors.projector import Json
from dovetail_plugins.gguf.projectors.targets import targets_of
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.reading.names import HEAD, TABLE

MMPROJ = "mmproj"
"""The key with the path of the projector's file."""
_TEXT = "model.language_model."
_OF_THE_WHOLE = ("quantization_config", "dtype", "tie_word_embeddings", "eos_token_id",
                 "bos_token_id")  # fmt: skip


def with_projector(model: GgufModel, text: Json, mmproj: str | None) -> Json:
    """Return a text model's config.json with the projector's, if it has one. Raises: ConfigError"""
    found = projector_of(model, text, mmproj)
    if found is None:
        return text
    pair, projectors = found
    part = projectors[0].text(pair)
    whole = {name: part.pop(name) for name in _OF_THE_WHOLE if name in part}
    types, stored = float_types(found), whole.get("quantization_config")
    if stored:
        own = _types_in_whole(stored["types"]) if projectors[0].is_backed else stored["types"]
        whole["quantization_config"] = {**stored, "types": {**own, **types}}
    part.pop("architectures", None)
    config, processor = Json(), Json()
    for projector in projectors:
        config |= projector.config(pair)
        processor |= projector.processor(pair)
    return {
        **whole,
        **config,
        "text_config": part,
        PROCESSOR: processor,
        MMPROJ: str(pair.clip.model.path),
    }


def text_of(model: GgufModel, found: Found | None) -> GgufModel:
    """Return a text model, whose token table and head become plain numbers if transformers' code
    runs it."""
    if found is None or not found[1][0].is_backed:
        return model
    return replace(model, plain=frozenset({"token_embd", "output"}))


def _types_in_whole(types: Mapping[str, str]) -> dict[str, str]:
    """Return module -> type under the names that transformers has with an encoder."""
    return {
        f"{_TEXT}{name.removeprefix('model.')}": kind
        for name, kind in types.items()
        if name not in (TABLE, HEAD)
    }


def float_types(found: Any) -> Mapping[str, str]:
    """Return module -> type of the encoder's matrices in half precision; the others are float32."""
    types: dict[str, str] = {}
    for name, target in targets_of(*found).items():
        kinds = {extent.type.name for extent in target.extents}
        kind = kinds.pop() if len(kinds) == 1 else "F32"
        if name.endswith(".weight") and kind in FLOAT_DTYPES:
            types[name.removesuffix(".weight")] = kind
    return types
