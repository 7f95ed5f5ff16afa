"""The number and type of a model's parameters in Ollama's terms, read from its weight files.

Only the headers are read, once per model. Independent of file formats: the load format reads them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.sources.gguf_names import label_of
from dovetail.errors import DovetailError
from dovetail.interfaces.data.headers import StoredLayer
from dovetail.interfaces.data.spec import ModelSpec, RunSpec, Selection
from dovetail.interfaces.load_format import Checkpoint
from dovetail_plugins.inspect.stored_layers import layers_of, values_by_name

logger = logging.getLogger("dovetail.server")
MAX_KNOWN = 4
UNQUANTIZED = "none"
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
"""Ollama's names of unquantized weight types."""
PACKED = {"uint8": 2, "int32": 8}
"""Types that pack several weights: four-bit ones, unless the layer's name implies another
number."""
NO_PARAMETERS = ("scale", "zero", "absmax", "quant_", "g_idx", "shape", "SCB", "format", "inv_freq")
"""Words in the names of tensors that only describe other tensors."""
UNITS = ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0))
"""Ollama's units, with the number of decimals for fractional numbers."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The number of a model's parameters, and their type; empty if its files do not show them."""

    parameter_size: str = ""
    quantization_level: str = ""


def weights_of(run: RunSpec) -> Weights:
    """Return the facts in a model's weight files, which do not change while it is served."""
    return _read(msgspec.json.encode((run.model, run.load_format, run.quantization.name)))


@lru_cache(MAX_KNOWN)
def _read(model_json: bytes) -> Weights:
    found = msgspec.json.decode(model_json, type=tuple[ModelSpec, Selection, str])
    model, load_format, quantization = found
    stored: Counter[str] = Counter()
    try:
        headers = registry.make(load_format).headers(Checkpoint(path=model.path))
        for layer in layers_of(headers or ()):
            for dtype, count in _parameters(layer, model):
                stored[dtype] += count
    except (DovetailError, OSError) as error:
        logger.info("the files of %s do not tell their parameters: %s", model.path, error)
    if not stored:
        return Weights(
            quantization_level=model.dtype if quantization == UNQUANTIZED else quantization
        )
    return Weights(in_words(stored.total()), _level(model, quantization, stored))


def _parameters(layer: StoredLayer, model: ModelSpec) -> Iterator[tuple[str, int]]:
    """Yield (type, count) of a layer's parameters."""
    for leaf, header in layer.tensors.items():
        if any(word in leaf for word in NO_PARAMETERS):
            continue
        per_value = PACKED.get(header.dtype, 1)
        packed = values_by_name(layer.name, model) if per_value > 1 else 0
        yield header.dtype, packed or header.num_values * per_value


def _level(model: ModelSpec, quantization: str, stored: Counter[str]) -> str:
    """Return the type of most parameters: the file's own block type, else the quantization."""
    usual = stored.most_common(1)[0][0]
    if not usual.islower():
        return label_of(PurePath(model.path).stem) or usual
    return TYPES.get(usual, usual) if quantization == UNQUANTIZED else quantization


def in_words(count: int) -> str:
    """Return a number of parameters in Ollama's format."""
    for size, unit, digits in UNITS:
        if count >= size:
            return f"{count / size:.{0 if count % size == 0 else digits}f}{unit}"
    return str(count)
