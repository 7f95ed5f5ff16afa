"""One step by flashinfer: blocks in its list format, a plan for each kind of layer.

Knows no choice of backend; the package is an argument.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, count
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

import torch

from dovetail.interfaces.attention import AttentionCall, AttentionSpec, BatchLayout
from dovetail_plugins.attention._paged_write import window_sides, write

WORKSPACE_BYTES = 128 << 20


class Planned:
    """One of the package's objects. A plan is made in pinned memory and copied from there later, so
    the next one waits until the device has got so far."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self._copied: torch.cuda.Event | None = None

    def plan(self, *args: Any, device: torch.device, **rules: Any) -> None:
        """Plan a step. Mutates: self"""
        if self._copied is not None:
            self._copied.synchronize()
        self.wrapper.plan(*args, **rules)
        if device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(device))


class Wrappers:
    """The package's objects over one workspace, one for each kind of layer and each group of layers
    that share blocks: a plan holds for the whole step."""

    def __init__(self, package: ModuleType) -> None:
        self._make = package.BatchPrefillWithPagedKVCacheWrapper
        self._workspace: torch.Tensor | None = None
        self._made: dict[tuple[AttentionSpec, int], Planned] = {}
        self._living: WeakValueDictionary[int, FlashInferStep] = WeakValueDictionary()

    def prepared(self, layout: BatchLayout) -> FlashInferStep:
        """Return a group's rows as the package wants them, numbered among those that are in use.

        Mutates: self
        """
        number = next(n for n in count() if n not in self._living)
        step = self._living[number] = FlashInferStep(layout, number)
        return step

    def of(self, kind: AttentionSpec, number: int, device: torch.device) -> Planned:
        """Return the object of a kind of layer. Mutates: self, when it is the first call"""
        if self._workspace is None:
            self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        if (kind, number) not in self._made:
            self._made[kind, number] = Planned(self._make(self._workspace, "NHD"))
        return self._made[kind, number]


class FlashInferStep:
    """A step's rows as lists of blocks, and the kinds of layers planned so far. `number` differs
    from that of every other group of the step.

    Shapes: starts [R + 1], block_starts [R + 1] and last_tokens [R] int32 on the host; blocks
    [block_starts[-1]] int32 on the device
    """

    def __init__(self, layout: BatchLayout, number: int) -> None:
        self.layout, self.number = layout, number
        size = layout.block_tokens
        counts = [-(-length // size) for length in layout.seq_lens_host]
        self.starts = torch.tensor(layout.query_start_host, dtype=torch.int32)
        self.block_starts = torch.tensor([0, *accumulate(counts)], dtype=torch.int32)
        self.last_tokens = torch.tensor(
            [(length - 1) % size + 1 for length in layout.seq_lens_host], dtype=torch.int32
        )
        width = layout.block_table.shape[1]
        places = [row * width + i for row, count in enumerate(counts) for i in range(count)]
        device = layout.block_table.device
        chosen = torch.tensor(places, dtype=torch.int64).to(device, non_blocking=True)
        self.blocks = layout.block_table.reshape(-1)[chosen]
        self.planned: set[AttentionSpec] = set()


def forward(call: AttentionCall, wrappers: Wrappers) -> torch.Tensor:
    """Write k and v, if there are any, then attend (see `AttentionBackend.forward`).

    Mutates: cache, prepared
    """
    spec, q, cache, prepared = call.spec, call.q, call.cache, call.prepared
    write(call, prepared.layout.slots)
    kind = replace(spec, k_scale=1.0, v_scale=1.0)
    planned = wrappers.of(kind, prepared.number, q.device)
    if kind not in prepared.planned:
        _plan(planned, kind, prepared, q.dtype, cache.dtype)
        prepared.planned.add(kind)
    scales = {} if kind == spec else {"k_scale": spec.k_scale, "v_scale": spec.v_scale}
    out: torch.Tensor = planned.wrapper.run(q, (cache[0], cache[1]), **scales)
    return out


def _plan(
    planned: Planned,
    kind: AttentionSpec,
    prepared: FlashInferStep,
    q_dtype: torch.dtype,
    kv_dtype: torch.dtype,
) -> None:
    """Pass a step's rows to the package. Mutates: planned"""
    planned.plan(
        prepared.starts,
        prepared.block_starts,
        prepared.blocks,
        prepared.last_tokens,
        kind.num_heads,
        kind.num_kv_heads,
        kind.head_size,
        prepared.layout.block_tokens,
        causal=kind.is_causal,
        sm_scale=kind.scale,
        window_left=window_sides(kind)[0],
        logits_soft_cap=kind.soft_cap or 0.0,
        q_data_type=q_dtype,
        kv_data_type=kv_dtype,
        device=prepared.layout.block_table.device,
    )
