"""LoRA in a GGUF file, as llama.cpp's convert_lora_to_gguf.py makes it of PEFT's.

Tensors are "NAME.lora_a" [R, I] and "NAME.lora_b" [O, R], where NAME is the base model's tensor in
GGUF; of the token table A is [I, R]. As in llama.cpp, a file without an alpha, or with 0, has the
scale 1. Rows that converters reorder are in the file's order.

Source for keys, shapes and scale:
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-adapter.cpp
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterMethod, AdapterWeights, ModuleChange
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail_plugins.adapters._control import CONTROL, control_weights
from dovetail_plugins.gguf.blocks.integers import dequantize
from dovetail_plugins.gguf.blocks.types import QUANTIZED
from dovetail_plugins.gguf.families.family import FamilyNames
from dovetail_plugins.gguf.reading.file import (
    SUFFIX,
    GgufModel,
    TensorExtent,
    find_file,
    read_head,
    read_model,
)
from dovetail_plugins.gguf.reading.names import TensorTarget, layout_of, place_of
from dovetail_plugins.gguf.reading.tensors import DTYPES

ARCHITECTURE, TYPE = "general.architecture", "general.type"
KIND, ALPHA = "adapter.type", "adapter.lora.alpha"
INVOCATION = "adapter.alora.invocation_tokens"
DOWN, UP = ".lora_a", ".lora_b"
_TURNED = ("q_proj", "k_proj")
_FIX = "convert PEFT's adapter again with a current llama.cpp, or serve PEFT's folder."


class GgufAdapter(AdapterMethod):
    """Low-rank changes of linear layers, experts and token tables; or a control vector."""

    info = Info(
        summary="LoRA or a control vector in a GGUF file, as llama.cpp has it",
        source="https://github.com/ggml-org/llama.cpp/blob/master/convert_lora_to_gguf.py",
    )
    capabilities = frozenset({"changes_modules"})
    peft_types = (SUFFIX[1:].upper(),)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self._model = model

    def read(self, folder: Path, config: Mapping[str, Any]) -> AdapterWeights:
        """Return the adapter in a file. Raises: ConfigError naming the file and the key"""
        found = read_model(folder)
        if found.settings.get(ARCHITECTURE) == CONTROL:
            return control_weights(found, self._model, _numbers)
        self._verify(found)
        layout = layout_of(found)
        if layout is None:
            raise ConfigError(
                f'the architecture "{found.settings.get(ARCHITECTURE)}" is not read.',
                where=f"{folder}: {ARCHITECTURE}",
                fix="serve PEFT's folder of the adapter.",
            )
        changes: dict[str, ModuleChange] = {}
        for name, (down, up) in _pairs(found).items():
            changes |= self._changes(found, layout, name, down, up)
        return AdapterWeights(changes=changes)

    def _verify(self, found: GgufModel) -> None:
        """Raises: ConfigError for a file that is not a LoRA for the model"""
        architecture = found.settings.get(ARCHITECTURE)
        wanted = {TYPE: "adapter", KIND: "lora", ARCHITECTURE: self._architecture or architecture}
        for key, value in wanted.items():
            if found.settings.get(key) != value:
                stated = found.settings.get(key)
                raise ConfigError(
                    f"it is {'missing' if stated is None else repr(stated)}, and a LoRA for this "
                    f"model has {value!r}.",
                    where=f"{found.path}: {key}",
                    fix="name the GGUF file of an adapter that was trained for this model.",
                )
        if found.settings.get(INVOCATION):
            raise ConfigError(
                "LoRA that begins at an invocation (aLoRA) is not supported.",
                where=f"{found.path}: {INVOCATION}",
                fix="use an adapter that applies to all tokens.",
            )

    @cached_property
    def _architecture(self) -> str:
        """GGUF's name of the model's architecture, empty for a model in other files."""
        path = Path(self._model.path)
        file = find_file(path) if path.suffix == SUFFIX or path.is_file() else None
        return "" if file is None else str(read_head(file).settings.get(ARCHITECTURE))

    def _changes(
        self,
        found: GgufModel,
        layout: FamilyNames,
        name: str,
        down: TensorExtent,
        up: TensorExtent,
    ) -> dict[str, ModuleChange]:
        """Return the changes of one tensor of the model, by module. Raises: ConfigError"""
        where = f"{found.path}: {name}"
        place = place_of(layout, name)
        if place is None or not place.is_matrix or place.stem in layout.undo:
            raise ConfigError("adapters of this tensor are not read.", where=where, fix=_FIX)
        a, b = _numbers(down), _numbers(up)
        if place.stem == "token_embd":
            a = a.t()
        axes = 3 if place.is_stacked else 2
        if a.dim() != axes or b.dim() != axes or a.shape[-2] != b.shape[-1]:
            raise ConfigError(
                f"lora_a {list(a.shape)} and lora_b {list(b.shape)} do not fit each other.",
                where=where,
                fix=_FIX,
            )
        scale = _scale(found, a.shape[-2])
        if place.is_stacked:
            if len(a) != len(b):
                raise ConfigError(
                    f"lora_a has {len(a)} experts, and lora_b {len(b)}.", where=where, fix=_FIX
                )
            pairs = enumerate(zip(a, b, strict=True))
            return {
                place.expert(n): ModuleChange(down=one, up=two, scale=scale)
                for n, (one, two) in pairs
            }
        if layout.turns_heads:
            b = self._turned(where, place, b)
        return {place.owner: ModuleChange(down=a, up=b, scale=scale)}

    def _turned(self, where: str, place: TensorTarget, rows: torch.Tensor) -> torch.Tensor:
        """Return rows in the checkpoint's order, whose pairs (2 i, 2 i + 1) of every head become
        (i, i + half). Raises: ConfigError. Shapes: rows [O, R]"""
        last = place.module.rpartition(".")[2]
        if last not in _TURNED:
            return rows
        heads = self._model.num_heads if last == "q_proj" else self._model.num_kv_heads
        if len(rows) % (2 * heads):
            raise ConfigError(
                f"lora_b has {len(rows)} rows, and the model {heads} heads.", where=where, fix=_FIX
            )
        return rows.view(heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _pairs(found: GgufModel) -> dict[str, tuple[TensorExtent, TensorExtent]]:
    """Return the model's tensors with both matrices. Raises: ConfigError for a tensor that is none,
    or is without its pair"""
    parts: dict[str, dict[str, TensorExtent]] = {}
    for extent in found.extents:
        end = next((end for end in (DOWN, UP) if extent.name.endswith(end)), "")
        if not end:
            raise ConfigError(
                "the tensor does not belong to a LoRA.",
                where=f"{found.path}: {extent.name}",
                fix=_FIX,
            )
        parts.setdefault(extent.name.removesuffix(end), {})[end] = extent
    for name, own in parts.items():
        if len(own) != 2:
            (end,) = own
            raise ConfigError(
                f"{end.lstrip('.')} is without its pair.", where=f"{found.path}: {name}", fix=_FIX
            )
    if not parts:
        raise ConfigError("the file has no tensors.", where=str(found.path), fix=_FIX)
    return {name: (own[DOWN], own[UP]) for name, own in parts.items()}


def _scale(found: GgufModel, rank: int) -> float:
    """Return the factor of a product. Raises: ConfigError for an alpha that is not a number"""
    alpha = found.settings.get(ALPHA, 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise ConfigError(f"{alpha!r} is not a number.", where=f"{found.path}: {ALPHA}", fix=_FIX)
    return float(alpha) / rank if alpha else 1.0


def _numbers(extent: TensorExtent) -> torch.Tensor:
    """Return a tensor's numbers. Raises: ConfigError if the file cannot be read"""
    try:
        with extent.path.open("rb") as file:
            file.seek(extent.start)
            raw = bytearray(file.read(extent.num_bytes))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}.", where=str(extent.path)) from error
    if len(raw) < extent.num_bytes:
        raise ConfigError("the file became shorter while it was read.", where=str(extent.path))
    data = torch.frombuffer(raw, dtype=torch.uint8)
    if extent.type.name in QUANTIZED:
        return dequantize(extent.type.name, data.view(*extent.shape[:-1], -1))
    return data.view(DTYPES[extent.type.name]).view(extent.shape)
