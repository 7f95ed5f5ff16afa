"""InPlace: reads another checkpoint of a running model without memory for most of its weights.

A matrix that is packed as the checkpoint has it is not loaded: its tensors stay where the load
format leaves them, in a mapped file say, and are packed over the running weight when they are
written. Parameters that no layer repacks are copied from there. All else is loaded as at the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from dovetail.interfaces.data.spec import RunSpec
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import Linear
from dovetail.layers.linear.packs import PACKED_LAYERS
from dovetail.layers.linear.placement import Placement, WeightHolder, is_optional
from dovetail.layers.weights import own_finish
from dovetail.runner.load.loader import GivingBack, build_model, fill, fill_from_files, method_of
from dovetail_kernels.gemm.native import Packed
from dovetail_plugins.layers.stored.matrix_linear import ConvertedLinear

Pieces = tuple[tuple[Placement, torch.Tensor], ...]
"""The tensors of a checkpoint that fill a parameter, and where."""
Tensors = Iterable[tuple[str, torch.Tensor]]
WEIGHT = "weight"
USUAL = (Linear.finish, VocabParallelEmbedding.finish)
"""What layers do with their weight that leave all to the method."""


class Writing(Protocol):
    """Tensors of a checkpoint that are to be written over weights in use."""

    @property
    def pieces(self) -> Pieces:
        """Return the tensors."""

    def write(self) -> None:
        """Write them. Mutates: the weights in use"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Tensors that are to be packed over a weight whose values are of type `dtype`."""

    packed: Packed
    dtype: torch.dtype
    pieces: Pieces

    def write(self) -> None:
        """Pack the tensors. Mutates: packed"""
        rows, width = np.zeros(self.packed.facts.out_size, dtype=np.int64), self.packed.in_size
        sources = [(one.target, one.cut(tensor).to(self.dtype)) for one, tensor in self.pieces]
        sources = [(to, own if own.stride(1) == 1 else own.contiguous()) for to, own in sources]
        for target, source in sources:
            first, step = target.storage_offset() // width, target.stride(0) // width
            places = np.arange(len(source)) * (source.stride(0) * source.itemsize)
            rows[first : first + step * len(source) : step] = source.data_ptr() + places
        self.packed.pack_rows(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Tensors that are to be copied over a parameter."""

    parameter: nn.Parameter
    pieces: Pieces

    def write(self) -> None:
        """Copy the tensors. Mutates: parameter"""
        for one, tensor in self.pieces:
            to, first = one.target, self.parameter.storage_offset()
            place = self.parameter.data.as_strided(
                to.shape, to.stride(), first + to.storage_offset()
            )
            place.copy_(one.cut(tensor))


class InPlace:
    """Reads a checkpoint next to a running model; what is to be written over it are `writings`.
    `is_complete`: no weights were loaded besides them."""

    def __init__(self, running: nn.Module) -> None:
        self._layers = dict(running.named_modules())
        self._methods = {
            path: method
            for path, layer in self._layers.items()
            if (method := _packs_anew(layer)) is not None
        }
        self._paths: dict[int, str] = {}
        self._load = GivingBack(own_finish)
        self.writings: list[Writing] = []
        self.is_complete = True

    @property
    def num_bytes(self) -> int:
        """Return the bytes of running weights that are packed anew."""
        return sum(_plain(method).num_bytes for method in self._methods.values())

    def read(self, run: RunSpec, device: torch.device, tensors: Tensors | None = None) -> nn.Module:
        """Return the model of a run, read, or filled with `tensors` instead of its checkpoint's.
        What is written over running weights is in it as they are. Raises: ConfigError.
        Mutates: self"""
        quant = method_of(run)
        with quant.loading(run):
            token = PACKED_LAYERS.set({method.name for method in self._methods.values()})
            try:
                model = build_model(run, device, quant)
                self._paths = {id(layer): path for path, layer in model.named_modules()}
                for layer, name in list(self._unpacked(model)):
                    _release(layer, name)
                for parameter in model.parameters():
                    if _has_no_memory(parameter):
                        vars(parameter)["pieces"] = {}
                if tensors is None:
                    fill_from_files(model, run, device, quant, finish=self._finish)
                else:
                    fill(model, tensors, quant, run.rank, finish=self._finish)
            finally:
                PACKED_LAYERS.reset(token)
        for path, layer in list(model.named_modules()):
            self._follow(layer, self._layers.get(path), self._methods.get(path))
        return model.eval().requires_grad_(False)

    def _unpacked(self, model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
        """Yield the parameters that stay as they are filled, with their layers and names."""
        for path, layer in model.named_modules():
            is_free = not isinstance(layer, WeightHolder) or path in self._methods
            if not is_free and not (isinstance(layer, VocabParallelEmbedding) and not layer.method):
                continue
            own = self._layers[path]._parameters if path in self._layers else {}
            for name, parameter in layer._parameters.items():
                if parameter is not None and _is_alike(parameter, own.get(name)):
                    yield layer, name

    def _finish(self, layer: WeightHolder) -> None:
        """Repack a filled layer that has memory. Mutates: layer"""
        if any(_has_no_memory(one) for one in layer._parameters.values() if one is not None):
            return
        self.is_complete = False
        self._load(layer)

    def _follow(
        self, layer: nn.Module, running: nn.Module | None, method: ConvertedLinear | None
    ) -> None:
        """Note what is to be written over a running layer, which `layer` becomes. Mutates: layer"""
        for name, parameter in list(layer._parameters.items()):
            if parameter is None:
                continue
            if not _has_no_memory(parameter):
                self.is_complete = False
                continue
            assert running is not None, "such layers were chosen"
            pieces = tuple(vars(parameter)["pieces"].values())
            if method is not None and name == WEIGHT:
                packed = _plain(method)
                self.writings.append(Packing(packed=packed, dtype=parameter.dtype, pieces=pieces))
                del layer._parameters[name]
                vars(layer)["method"] = method
                layer._buffers.update(running._buffers)
            else:
                own = running.get_parameter(name)
                self.writings.append(Copying(parameter=own, pieces=pieces))
                layer._parameters[name] = own


def _packs_anew(layer: nn.Module) -> ConvertedLinear | None:
    """Return a layer's method if all that it makes of its weight is a matrix that can be packed
    anew; else None."""
    method = vars(layer).get("method")
    if not isinstance(layer, WeightHolder) or type(layer).finish not in USUAL:
        return None
    if not isinstance(method, ConvertedLinear) or method.plain is None or not method.name:
        return None
    return method


def _plain(method: ConvertedLinear) -> Packed:
    packed = method.plain
    assert packed is not None, "such a layer was chosen"
    return packed


def _is_alike(parameter: nn.Parameter, running: nn.Parameter | None) -> bool:
    """Return whether a parameter can be written over one in use, and must be filled."""
    return (
        running is not None
        and not is_optional(parameter)
        and (parameter.shape, parameter.dtype) == (running.shape, running.dtype)
        and running.is_contiguous()
    )


def _has_no_memory(parameter: nn.Parameter) -> bool:
    return parameter.device.type == "meta" and "make_memory" not in vars(parameter)


def _release(layer: nn.Module, name: str) -> None:
    """Give a parameter shape and marks, but no memory. Mutates: layer"""
    old = layer.get_parameter(name)
    layer._parameters[name] = nn.Parameter(old.data.to("meta"), requires_grad=False)
    vars(layer.get_parameter(name)).update(vars(old))
    vars(layer.get_parameter(name)).pop("make_memory", None)
