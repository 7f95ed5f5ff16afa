"""A GGUF file's tensors under the names, and in the shapes, of the Hugging Face checkpoint.

A quantized matrix is not converted: "q_proj.Q4_K" has the bytes of the rows of "q_proj.weight".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dovetail.errors import ConfigError
from dovetail.layers.linear.packs import PACKED_LAYERS
from dovetail_kernels.cpu.blocks import large_empty
from dovetail_kernels.cpu.library import library
from dovetail_plugins.gguf.blocks.integers import dequantize
from dovetail_plugins.gguf.blocks.types import QUANTIZED
from dovetail_plugins.gguf.families.family import FamilyNames
from dovetail_plugins.gguf.reading.file import GgufModel, TensorExtent
from dovetail_plugins.gguf.reading.names import TensorTarget, check_names, layout_of, place_of
from dovetail_plugins.gguf.reading.stacks import divided
from dovetail_plugins.load_formats._mapped import MappedFile

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}


def tensors_of(model: GgufModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a model; their bytes are read when they are copied.

    The pages of a tensor leave this process's memory when the next one is requested: a file and the
    model made of it are not in memory together. Names of an unknown architecture are unchanged.
    """
    layout = layout_of(model)
    if layout is not None:
        check_names(model, layout)
    joined: dict[str, dict[str, torch.Tensor]] = {}
    for path in dict.fromkeys(extent.path for extent in model.extents):
        mapped = MappedFile(path)
        own = [extent for extent in model.extents if extent.path == path]
        for extent in own if layout is None else divided(own):
            if layout is None:
                yield extent.name, _read(mapped, extent)
            else:
                yield from _renamed(model, layout, extent, _read(mapped, extent), joined)
            mapped.let_go(extent.start, extent.start + extent.num_bytes)


def _read(mapped: MappedFile, extent: TensorExtent) -> torch.Tensor:
    """Return a tensor in the mapped file: its numbers, or its rows as bytes."""
    raw = mapped.read(extent.start, extent.start + extent.num_bytes)
    if extent.type.name not in QUANTIZED:
        return raw.view(DTYPES[extent.type.name]).view(extent.shape)
    row_bytes = extent.shape[-1] // extent.type.values * extent.type.block_bytes
    return raw.view(*extent.shape[:-1], row_bytes)


def _renamed(
    model: GgufModel,
    layout: FamilyNames,
    extent: TensorExtent,
    tensor: torch.Tensor,
    joined: dict[str, dict[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the checkpoint that one of the file's is, or is the last part of.

    Mutates: joined, which keeps parts until all have come
    """
    place = place_of(layout, extent.name)
    if place is None:  # a setting of the rotary embedding
        return
    is_quantized = extent.type.name in QUANTIZED
    if is_quantized and not place.is_matrix:
        tensor, is_quantized = dequantize(extent.type.name, tensor), False
    if place.is_joined:
        parts = joined.setdefault(place.module, {})
        parts[place.stem] = tensor
        if len(parts) == len(layout.joined):
            yield f"{place.module}.{place.leaf}", _latent_up(**joined.pop(place.module))
        return
    tensor = _as_stored(model, layout, place, tensor)
    leaf = extent.type.name if is_quantized else place.leaf
    if place.is_stacked:
        for number, expert in enumerate(tensor):
            yield f"{place.expert(number)}.{leaf}", expert
        return
    if layout.is_input_first and leaf == "weight" and ".c_" in place.module:
        tensor = tensor.t()
    yield f"{place.owner}.{leaf}", tensor


def _as_stored(
    model: GgufModel, layout: FamilyNames, place: TensorTarget, tensor: torch.Tensor
) -> torch.Tensor:
    """Return a tensor as in the checkpoint, undoing a converter's changes."""
    last = place.module.rpartition(".")[2]
    if layout.turns_heads and last in ("q_proj", "k_proj"):
        if _is_packed(place.module):
            return tensor
        return _turned(tensor, _num_heads(model, is_key=last == "k_proj"))
    if place.stem in layout.undo:
        return layout.undo[place.stem](model, tensor)
    if layout.adds_one and place.module.endswith("norm") and place.leaf == "weight":
        return tensor.float() - 1
    return tensor.unsqueeze(0) if last == "shared_expert_gate" and tensor.dim() == 1 else tensor


def _is_packed(module: str) -> bool:
    """Return whether a matrix of queries or keys is packed already: nobody reads its numbers."""
    holder, packed = module.rpartition(".")[0], PACKED_LAYERS.get()
    return module in packed or f"{holder}.qkv_proj" in packed


def _latent_up(attn_k_b: torch.Tensor, attn_v_b: torch.Tensor) -> torch.Tensor:
    """Return the matrix from a latent to keys and values, head by head, joined from its halves.

    Shapes: attn_k_b [H, L, N], attn_v_b [H, V, L] -> [H (N + V), L]
    """
    return torch.cat((attn_k_b.mT.float(), attn_v_b.float()), dim=1).flatten(0, 1)


def _turned(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return rows whose pairs (2 i, 2 i + 1) of every head become (i, i + half)."""
    order = torch.arange(len(rows)).view(num_heads, -1, 2).transpose(1, 2).flatten()
    native = library()
    out = None
    if native is not None:
        out = large_empty(rows.nbytes, native).view(rows.dtype).view(rows.shape)
    return torch.index_select(rows, 0, order, out=out)  # copies whole rows, reshape copies bytes


def _num_heads(model: GgufModel, *, is_key: bool) -> int:
    """Return the heads of queries or of keys. Raises: ConfigError when the file does not say."""
    prefix = f"{model.settings['general.architecture']}.attention.head_count"
    heads = model.settings.get(prefix)
    if is_key:
        heads = model.settings.get(f"{prefix}_kv", heads)
    heads = max(heads) if isinstance(heads, list) and heads else heads
    if not isinstance(heads, int) or heads <= 0:
        raise ConfigError(f"{prefix} is {heads!r}", where=str(model.path))
    return heads
