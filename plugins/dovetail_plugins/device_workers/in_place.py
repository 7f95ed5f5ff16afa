"""InPlace: reads another checkpoint of a running model without memory for most of its weights.

A matrix that is packed as the checkpoint has it is not loaded: its tensors stay where the load
format leaves them, in a mapped file say, and are packed over the running weight when they are used.
Large tables that are not packed are copied from there. All else is loaded as at the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from torch import nn

from dovetail.interfaces.data.spec import RunSpec
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import Linear
from dovetail.layers.linear.packs import PACKED_LAYERS
from dovetail.layers.linear.placement import Placement, WeightHolder
from dovetail.layers.weights import own_finish
from dovetail.runner.load.loader import GivingBack, build_model, fill_from_files, method_of
from dovetail_kernels.gemm.native import Packed
from dovetail_plugins.layers.stored.matrix_linear import ConvertedLinear


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """A packed weight in use, and the tensors of a checkpoint of which it is to be packed, with
    their places in its matrix. `dtype` is the type of its values."""

    packed: Packed
    dtype: torch.dtype
    pieces: tuple[tuple[Placement, torch.Tensor], ...]

    def pack(self) -> None:
        """Pack the tensors over the weight in use. Mutates: packed"""
        rows, width = np.zeros(self.packed.facts.out_size, dtype=np.int64), self.packed.in_size
        sources = [(one.target, one.cut(tensor).to(self.dtype)) for one, tensor in self.pieces]
        for target, source in sources:
            assert source.stride(1) == 1 or width == 1, "rows are contiguous"
            first, step = target.storage_offset() // width, target.stride(0) // width
            places = np.arange(len(source)) * (source.stride(0) * source.itemsize)
            rows[first : first + step * len(source) : step] = source.data_ptr() + places
        self.packed.pack_rows(rows)


class InPlace:
    """Reads a checkpoint next to a running model; `packings` are the matrices that it leaves to
    pack, `borrowed` the addresses of tables that have no memory of their own."""

    def __init__(self, running: nn.Module) -> None:
        self._running = {
            path: (layer, method)
            for path, layer in running.named_modules()
            if isinstance(layer, WeightHolder) and (method := _packs_anew(layer)) is not None
        }
        self._paths: dict[int, str] = {}
        self._load = GivingBack(own_finish)
        self.packings: list[Packing] = []
        self.borrowed: set[int] = set()

    @property
    def num_bytes(self) -> int:
        """Return the bytes of running weights that are packed anew."""
        return sum(_plain(method).num_bytes for _, method in self._running.values())

    def read(self, run: RunSpec, device: torch.device) -> nn.Module:
        """Return the model of a run, read. Its matrices that are packed anew are the running ones.
        Raises: ConfigError. Mutates: self"""
        quant = method_of(run)
        with quant.loading(run):
            token = PACKED_LAYERS.set({method.name for _, method in self._running.values()})
            try:
                model = build_model(run, device, quant)
                self._paths = {id(layer): path for path, layer in model.named_modules()}
                for layer in filter(_is_table, model.modules()):
                    vars(layer.weight)["may_borrow"] = True
                fill_from_files(model, run, device, quant, finish=self._finish)
            finally:
                PACKED_LAYERS.reset(token)
        return model.eval().requires_grad_(False)

    def _finish(self, layer: WeightHolder) -> None:
        """Let a filled layer use the running matrix, which is to be packed anew; let a table stay
        where it is; repack any other. Mutates: layer"""
        running = self._running.get(self._paths[id(layer)])
        if running is not None:
            self._note(layer, *running)
        elif _is_table(layer) and vars(layer.weight).pop("is_borrowed", False):
            self.borrowed.add(layer.get_parameter("weight").data_ptr())
        else:
            self._load(layer)

    def _note(self, layer: WeightHolder, running: WeightHolder, method: ConvertedLinear) -> None:
        weight = layer.get_parameter("weight")
        pieces = tuple(vars(weight)["pieces"].values())
        self.packings.append(Packing(packed=_plain(method), dtype=weight.dtype, pieces=pieces))
        del layer.weight
        layer.method = method
        layer._buffers.update(running._buffers)


def _packs_anew(layer: WeightHolder) -> ConvertedLinear | None:
    """Return a layer's method if all that it makes of its weight is a matrix that can be packed
    anew; else None."""
    method = vars(layer).get("method")
    is_usual = type(layer).finish in (Linear.finish, VocabParallelEmbedding.finish)
    is_plain = is_usual and isinstance(method, ConvertedLinear) and method.plain is not None
    return method if is_plain and method.name else None


def _plain(method: ConvertedLinear) -> Packed:
    packed = method.plain
    assert packed is not None, "such a layer was chosen"
    return packed


def _is_table(layer: nn.Module) -> TypeGuard[VocabParallelEmbedding]:
    """Return whether a layer is a table that is used as the checkpoint has it."""
    return isinstance(layer, VocabParallelEmbedding) and layer.method is None
