"""KV tensors: allocates the memory of a KVLayout and gives each layer its view.

Layer i of every group lives in tensor i, so layers of several groups may share one tensor. The
bytes of a block are contiguous, whatever the layer stores in them.
Independent of the scheduler; the shape of a view is up to the attention backend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import (
    CachedLayer,
    CrossLayer,
    EntryLayer,
    KVGroup,
    KVLayer,
    KVLayout,
    LatentLayer,
    StateLayer,
)
from dovetail.layers.context import INDEX_KEYS, LATENTS, LayerCache
from dovetail.layers.dtypes import dtype_of
from dovetail_kernels.cpu import library as native


def allocate_tensors(layout: KVLayout, device: torch.device) -> list[torch.Tensor]:
    """Return the tensors of a layout as blocks of bytes, not cleared. Raises: ConfigError

    Shapes: each [num_blocks + num_draft_blocks, block_bytes] uint8
    """
    num_blocks = layout.num_blocks + layout.num_draft_blocks
    num_bytes = num_blocks * layout.block_bytes
    shape = (num_blocks, layout.block_bytes)
    return [_allocate(num_bytes, device).view(shape) for _ in range(layout.num_tensors)]


def layer_caches(
    layout: KVLayout,
    layers: Sequence[CachedLayer],
    backend: AttentionBackend,
    tensors: Sequence[torch.Tensor],
) -> dict[str, LayerCache]:
    """Return each layer's view of the tensors by name; for a state, one view per part.

    Raises: ConfigError when the layout does not fit a layer.
    """
    known = {layer.name: layer for layer in layers}
    return {
        name: _view(tensors[i], layout, known[name], backend)
        for group in layout.groups
        for i, name in enumerate(group.layers)
    }


def small_layout(
    layers: Sequence[CachedLayer],
    backend: AttentionBackend,
    *,
    block_tokens: int,
    num_blocks: int,
    draft: KVLayout | None = None,
) -> KVLayout:
    """Return a layout of few blocks in which every layer has its own tensor, for steps before the
    number of blocks is known. `draft` is the layout of a drafter's layers."""
    layout = KVLayout(
        groups=_two_groups(layers),
        num_tensors=len(layers),
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        block_bytes=0,
        draft=draft,
    )
    sizes = [_block_bytes(layout, layer, backend) for layer in layers]
    return msgspec.structs.replace(layout, block_bytes=max(sizes, default=0))


def _two_groups(layers: Sequence[CachedLayer]) -> tuple[KVGroup, ...]:
    """Return a group of the layers that cache tokens, and one of cross-attention layers."""
    cross = [layer for layer in layers if isinstance(layer, CrossLayer)]
    own = [layer.name for layer in layers if not isinstance(layer, CrossLayer)]
    groups = [KVGroup(layers=tuple(own))] if own else []
    if cross:
        names, max_rows = (
            tuple(layer.name for layer in cross),
            max(layer.max_rows for layer in cross),
        )
        groups.append(KVGroup(layers=names, cross_rows=max_rows))
    return tuple(groups)


def allocate_step(
    layers: Sequence[KVLayer],
    backend: AttentionBackend,
    device: torch.device,
    run: RunSpec,
) -> dict[str, torch.Tensor]:
    """Return the memory of layers that cache nothing between steps, by name; they share it.

    Each row of a step begins a block. Raises: ConfigError when the device has too little memory.
    """
    if not layers:
        return {}
    size = run.block_tokens
    num_blocks = 1 + run.max_step_tokens // size + run.max_rows
    layout = KVLayout(
        groups=(), num_tensors=1, num_blocks=num_blocks, block_tokens=size, block_bytes=0
    )
    largest = max(_block_bytes(layout, layer, backend) for layer in layers)
    layout = msgspec.structs.replace(layout, block_bytes=largest)
    (memory,) = allocate_tensors(layout, device)
    return {layer.name: _kv_view(memory, layout, layer, backend) for layer in layers}


def cache_tensors(caches: Mapping[str, LayerCache]) -> list[torch.Tensor]:
    """Return the tensors of layers' caches."""
    found: list[torch.Tensor] = []
    for cache in caches.values():
        found.extend(cache.values() if isinstance(cache, dict) else (cache,))
    return found


def cross_rows(layout: KVLayout) -> dict[int, int]:
    """Return the maximum rows of encodings per request, by KV group that caches encodings."""
    return {g: group.cross_rows for g, group in enumerate(layout.groups) if group.cross_rows}


def group_of_layers(layout: KVLayout) -> dict[str, int]:
    """Return each layer's group number, by name."""
    return {name: g for g, group in enumerate(layout.groups) for name in group.layers}


def _shape(layout: KVLayout, layer: KVLayer, backend: AttentionBackend) -> tuple[int, ...]:
    return backend.kv_shape(
        layout.num_blocks, layout.block_tokens, layer.num_kv_heads, layer.stored_size
    )


def _block_bytes(layout: KVLayout, layer: CachedLayer, backend: AttentionBackend) -> int:
    """Return the bytes of a block in a layer."""
    match layer:
        case StateLayer():
            return layer.num_bytes({p.dtype: dtype_of(p.dtype).itemsize for p in layer.parts})
        case LatentLayer() | EntryLayer():
            return layer.block_bytes(layout.block_tokens, dtype_of(layer.dtype).itemsize)
        case CrossLayer():
            layer = layer.as_tokens
    size = math.prod(_shape(layout, layer, backend)) * dtype_of(layer.dtype).itemsize
    return size // layout.num_blocks


def _allocate(num_bytes: int, device: torch.device) -> torch.Tensor:
    try:
        memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    except (RuntimeError, MemoryError) as error:
        raise ConfigError(
            f"{num_bytes / 2**20:.0f} MiB for one KV cache tensor cannot be allocated on {device}",
            where="KV cache",
            fix="lower the flag that sets its size: --kv-cache-memory-bytes, "
            "--num-gpu-blocks-override or --gpu-memory-utilization.",
        ) from error
    library = native.library() if device.type == "cpu" else None
    if library is not None:  # blocks are page-sized pieces anywhere in it
        library.prefer_large_pages(memory.data_ptr(), num_bytes)
    return memory


def _view(
    memory: torch.Tensor, layout: KVLayout, layer: CachedLayer, backend: AttentionBackend
) -> LayerCache:
    """Return a layer's view of blocks of bytes. Shapes: memory [N, block_bytes]"""
    used = _block_bytes(layout, layer, backend)
    if used > layout.block_bytes:
        raise ConfigError(
            f"a block of layer {layer.name} takes {used} bytes, and its KV tensor has only "
            f"{layout.block_bytes}.",
            where="KV layout",
            fix="put layers with blocks of another size into separate tensors.",
        )
    match layer:
        case StateLayer():
            return _state_views(memory, layer)
        case LatentLayer():
            return _latent_views(memory[:, :used], layout.block_tokens, layer)
        case EntryLayer():
            return _entry_views(memory, layout.block_tokens, layer)
        case CrossLayer():
            layer = layer.as_tokens
    return _kv_view(memory, layout, layer, backend)


def _latent_views(memory: torch.Tensor, block_tokens: int, layer: LatentLayer) -> LayerCache:
    """Return the latents, followed by the index keys if there are any. Shapes: memory [N, bytes] ->
    [N, P, size], or LATENTS [N, P, size] and INDEX_KEYS [N, P, index_size]"""
    numbers = memory.view(dtype_of(layer.dtype))
    end = block_tokens * layer.size
    latents = numbers[:, :end].unflatten(1, (block_tokens, layer.size))
    if not layer.index_size:
        return latents
    keys = numbers[:, end:].unflatten(1, (block_tokens, layer.index_size))
    return {LATENTS: latents, INDEX_KEYS: keys}


def _entry_views(
    memory: torch.Tensor, block_tokens: int, layer: EntryLayer
) -> dict[str, torch.Tensor]:
    """Return each part's entries by name. Shapes: memory [N, bytes] -> each [N, P / tokens,
    size]"""
    numbers, start, views = memory.view(dtype_of(layer.dtype)), 0, {}
    for part in layer.parts:
        shape = (block_tokens // part.tokens, part.size)
        end = start + math.prod(shape)
        views[part.name], start = numbers[:, start:end].unflatten(1, shape), end
    return views


def _kv_view(
    memory: torch.Tensor, layout: KVLayout, layer: KVLayer, backend: AttentionBackend
) -> torch.Tensor:
    """Return the cache in the backend's shape, its bytes in block order whatever the axes."""
    shape = _shape(layout, layer, backend)
    axis = block_axis(backend, layout.block_tokens, layer)
    inside = (*shape[:axis], *shape[axis + 1 :])
    used = _block_bytes(layout, layer, backend)
    blocks = memory[:, :used].view(dtype_of(layer.dtype)).unflatten(1, inside)
    return blocks.movedim(0, axis)


def _state_views(memory: torch.Tensor, layer: StateLayer) -> dict[str, torch.Tensor]:
    """Return a view for each part of a state. Shapes: memory [N, bytes] -> each [N, *part.shape]"""
    sizes = {part.dtype: dtype_of(part.dtype).itemsize for part in layer.parts}
    views = {}
    for part, start in zip(layer.parts, layer.part_starts(sizes), strict=False):
        end = start + math.prod(part.shape) * sizes[part.dtype]
        views[part.name] = memory[:, start:end].view(dtype_of(part.dtype)).unflatten(1, part.shape)
    return views


def block_axis(backend: AttentionBackend, block_tokens: int, layer: KVLayer) -> int:
    """Return which axis of a layer's cache is the block."""
    one, two = (
        backend.kv_shape(count, block_tokens, layer.num_kv_heads, layer.stored_size)
        for count in (1, 2)
    )
    return next(axis for axis, (a, b) in enumerate(zip(one, two, strict=True)) if a != b)
