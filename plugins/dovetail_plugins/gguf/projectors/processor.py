"""Writes the processor's files of a GGUF model with a projector for transformers to read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.checkpoint.media_tokens import PROCESSOR
from dovetail.json_values import json_value
from dovetail_plugins.gguf.reading.file import find_file
from dovetail_plugins.gguf.vocabulary.read import read_tokenizer

_TOKENS = "tokens"
_PARTS = ("image_processor", "feature_extractor")
_OLDER = "preprocessor_config.json"


def folder_of(path: str, config: Mapping[str, Any]) -> str:
    """Return a folder with the processor's settings and the tokenizer of a GGUF model.

    A preprocessor_config.json next to the model wins over the projector's settings. The folder is
    deleted when the process ends. Raises: ConfigError
    """
    return _written(path, json.dumps(config)).name


@cache
def _written(path: str, config_text: str) -> tempfile.TemporaryDirectory[str]:
    folder: tempfile.TemporaryDirectory[str] = tempfile.TemporaryDirectory(
        prefix="dovetail-mmproj-"
    )
    file = find_file(path)
    assert file is not None, "the config of this model was read from a file"
    tokenizer, named = read_tokenizer(file)
    config = json_value(config_text)
    processor = config.pop(PROCESSOR)
    words = processor.pop(_TOKENS, {})
    class_name = {"processor_class": processor["processor_class"]}
    name = next(name for name in _PARTS if name in processor)
    processor[name] |= read_json(file.parent / _OLDER, is_required=False)
    pad = {"pad_token": named["eos_token"]} if "eos_token" in named else {}  # some ask for one
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **pad, **named, **class_name}
    files = {
        "config.json": config,
        "processor_config.json": processor,
        _OLDER: {**processor[name], **class_name},
        "tokenizer_config.json": settings | ({"extra_special_tokens": words} if words else {}),
    }
    for name, content in files.items():
        Path(folder.name, name).write_text(json.dumps(content), encoding="utf-8")
    Path(folder.name, "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    return folder
