"""Allocated: what a runner holds for a KV layout: the caches, the rows and their tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayer, KVLayout
from dovetail.interfaces.logits import LogitsProcessor
from dovetail.runner.device import DeviceCalls
from dovetail.runner.drafts.states import DraftStates
from dovetail.runner.kv.allocation import allocate_step, allocate_tensors, cross_rows, layer_caches
from dovetail.runner.rows.batch import Batch
from dovetail.runner.rows.layer_groups import LayerGroups
from dovetail.runner.rows.tensors import DeviceTensors, HostTensors


class Allocated:
    """`tensors` are the KV tensors as blocks of bytes, `caches` the layers' views of them.
    `step_layers` cache nothing between steps; their tokens see later ones. `processors` are the
    logits processors of the parts, by name."""

    def __init__(
        self,
        run: RunSpec,
        layout: KVLayout,
        backend: AttentionBackend,
        device: torch.device,
        calls: DeviceCalls,
        *,
        layers: Sequence[CachedLayer],
        step_layers: Sequence[KVLayer],
    ) -> None:
        """Allocate a layout. Raises: ConfigError"""
        self.layout, self.layers, self.step_layers = layout, layers, step_layers
        self.processors: dict[str, LogitsProcessor] = {}
        self.tensors = allocate_tensors(layout, device)
        self.caches = layer_caches(layout, layers, backend, self.tensors)
        self.caches |= allocate_step(step_layers, backend, device, run)
        self.groups = LayerGroups(layout, layers, step_layers)
        sizes = (run.max_rows, run.max_model_tokens, len(layout.groups), layout.block_tokens)
        cross = cross_rows(layout)
        self.batch = Batch(*sizes, has_step_blocks=bool(step_layers), cross_rows=cross)
        self.draft_states = DraftStates(layout, self.groups, self.batch.tables, self.caches)
        self.step_tensors: HostTensors | DeviceTensors = HostTensors(self.batch)
        if calls.runs_ahead:
            self.step_tensors = DeviceTensors(self.batch, device, calls)
