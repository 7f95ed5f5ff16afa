"""What a GGUF file says of itself: its quantization, its origin, and what it lacks.

Imports no torch. Source: the keys of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, the
numbers of llama_ftype in https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h, and the
keys quantize.imatrix.* of its quantizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail_plugins.gguf.reading.file import find_file, read_model
from dovetail_plugins.gguf.vocabulary.missing import filled
from dovetail_plugins.inspect.facts import FileFacts

LABELS: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0",
    38: "MXFP4_MOE", 39: "NVFP4",
}  # fmt: skip
"""`general.file_type` -> the name that files have in their names."""
_IMATRIX = "quantize.imatrix."


def facts_of_file(path: Path) -> FileFacts | None:
    """Return what a GGUF file says of itself, None for other checkpoints. Raises: ConfigError"""
    file = None if (path / "config.json").is_file() else find_file(path)
    if file is None:
        return None
    settings = read_model(file).settings
    _, lacks = filled(settings)
    return FileFacts(
        name=_text(settings, "general.name"),
        license=_text(settings, "general.license"),
        mixture=LABELS.get(settings.get("general.file_type", -1)),
        importances=_importances(settings),
        lacks=tuple(lacks),
    )


def _importances(settings: Mapping[str, Any]) -> str | None:
    """Return where the importance matrix is from, None without one."""
    if not any(key.startswith(_IMATRIX) for key in settings):
        return None
    words = [_text(settings, f"{_IMATRIX}{key}") for key in ("dataset", "file")]
    return next((Path(word).name for word in words if word), "an unnamed text")


def _text(settings: Mapping[str, Any], key: str) -> str | None:
    value = settings.get(key)
    return value if isinstance(value, str) and value else None
