"""KV tensors: a KVLayout becomes memory on a device, and each layer its view of that memory.

Layer i of every group lives in tensor i, so layers of several groups may share one tensor's bytes.
Knows no scheduler; the shape of a view is the attention backend's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import KVGroup, KVLayer, KVLayout
from dovetail.layers.dtypes import dtype_of
from dovetail_kernels.cpu import library as native


def allocate_kv(
    layout: KVLayout,
    layers: Sequence[KVLayer],
    backend: AttentionBackend,
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """Return each layer's cache tensor, by name. The memory is not cleared.

    Raises: ConfigError when the device has too little memory or the layout does not fit a layer.
    """
    known = {layer.name: layer for layer in layers}
    sizes = {
        name: _layer_bytes(layout, known[name], backend)
        for group in layout.groups
        for name in group.layers
    }
    _check_sizes(layout, sizes)
    num_bytes = layout.num_blocks * layout.block_bytes
    tensors = [_allocate(num_bytes, device) for _ in range(layout.num_tensors)]
    return {
        name: _view(tensors[i][: sizes[name]], layout, known[name], backend)
        for group in layout.groups
        for i, name in enumerate(group.layers)
    }


def small_layout(
    layers: Sequence[KVLayer],
    backend: AttentionBackend,
    *,
    block_tokens: int,
    num_blocks: int,
    draft: KVLayout | None = None,
) -> KVLayout:
    """Return a layout of few blocks in which every layer has its own tensor: a place to run steps
    before it is known how many blocks there will be. `draft` is that of a drafter's layers."""
    kept = KVLayout(
        groups=(KVGroup(layers=tuple(layer.name for layer in layers)),) if layers else (),
        num_tensors=len(layers),
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        block_bytes=0,
        draft=draft,
    )
    sizes = [_layer_bytes(kept, layer, backend) for layer in layers]
    return msgspec.structs.replace(kept, block_bytes=-(-max(sizes, default=0) // num_blocks))


def allocate_step(
    layers: Sequence[KVLayer],
    backend: AttentionBackend,
    device: torch.device,
    run: RunSpec,
) -> dict[str, torch.Tensor]:
    """Return the memory of layers that keep nothing behind them, by name: the same for all.

    Each row of a step begins a block. Raises: ConfigError when the device has too little memory.
    """
    if not layers:
        return {}
    size = run.block_tokens
    num_blocks = 1 + run.max_step_tokens // size + run.max_rows
    layout = KVLayout(
        groups=(), num_tensors=1, num_blocks=num_blocks, block_tokens=size, block_bytes=0
    )
    sizes = {layer.name: _layer_bytes(layout, layer, backend) for layer in layers}
    memory = _allocate(max(sizes.values()), device)
    return {
        layer.name: _view(memory[: sizes[layer.name]], layout, layer, backend) for layer in layers
    }


def group_of_layers(layout: KVLayout) -> dict[str, int]:
    """Return each layer's group number, by name."""
    return {name: g for g, group in enumerate(layout.groups) for name in group.layers}


def _shape(layout: KVLayout, layer: KVLayer, backend: AttentionBackend) -> tuple[int, ...]:
    return backend.kv_shape(
        layout.num_blocks, layout.block_tokens, layer.num_kv_heads, layer.stored_size
    )


def _layer_bytes(layout: KVLayout, layer: KVLayer, backend: AttentionBackend) -> int:
    return math.prod(_shape(layout, layer, backend)) * dtype_of(layer.dtype).itemsize


def _check_sizes(layout: KVLayout, sizes: Mapping[str, int]) -> None:
    """Raises: ConfigError when a block id would not name the same bytes in all layers."""
    room = layout.num_blocks * layout.block_bytes
    for i in range(layout.num_tensors):
        names = [group.layers[i] for group in layout.groups if i < len(group.layers)]
        wrong = [n for n in names if sizes[n] > room or sizes[n] != sizes[names[0]]]
        if wrong:
            raise ConfigError(
                f"layer {wrong[0]} needs {sizes[wrong[0]]} bytes, its KV tensor has {room} and "
                f"layer {names[0]}, which shares it, needs {sizes[names[0]]}",
                where="KV layout",
                fix="put layers with blocks of another size into separate tensors.",
            )


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
    if library is not None:  # blocks are page-sized pieces all over it
        library.prefer_large_pages(memory.data_ptr(), num_bytes)
    return memory


def _view(
    memory: torch.Tensor, layout: KVLayout, layer: KVLayer, backend: AttentionBackend
) -> torch.Tensor:
    return memory.view(dtype_of(layer.dtype)).view(_shape(layout, layer, backend))
