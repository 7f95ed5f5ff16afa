"""GPTQ checkpoints: 2, 3, 4 or 8 bits in groups of inputs, in any order of the inputs.

Per layer `qweight` int32 [I * bits / 32, O], `qzeros` int32 [I / G, O * bits / 32], `scales`
[I / G, O] and `g_idx` int32 [I], the group of every input. Format "gptq" stores zero points less
one, "gptq_v2" plain ones; "marlin" and "marlin_24" are separate layouts. `dynamic` maps expressions
that match layers' names to other bits and groups, or with the prefix "-:" to none;
`modules_in_block_to_quantize` lists what is quantized in a block if that is not everything.
Source: AutoGPTQ and GPTQModel, quantize_config.json and the layout of their packed linear layers
(https://github.com/ModelCloud/GPTQModel).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_plugins.layers.stored.checkpoint_method import (
    HEAD,
    StorageLayout,
    StoredMethod,
    listed,
)
from dovetail_plugins.layers.stored.layer_names import one_for_parts, parts_of
from dovetail_plugins.layers.stored.rounding import IntegerOptions
from dovetail_plugins.quantization._estimates import qweight_estimate, tiles_estimate

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

BITS = (2, 3, 4, 8)
FORMATS = ("gptq", "gptq_v2", "marlin", "marlin_24")
TILES = {"marlin": ("B", "s"), "marlin_24": ("B_24", "s")}
"""Layouts of tiles -> the names of their values and scales."""
LEFT_ALONE, CHANGED = "-:", "+:"


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqLayout:
    """One layer in GPTQ's layout. `group` -1: all inputs. `keeps_zeros`: zero points are stored
    plain, not less one."""

    bits: int
    group: int
    keeps_zeros: bool

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return qweight, qzeros, scales and g_idx."""
        groups = spec.num_groups(self.group)
        words = self.bits * spec.out_size // 32
        rows = self.bits * spec.in_size // 32
        return (
            StoredTensor(name="qweight", shape=(rows, spec.out_size), dtype="int32",
                         output_axis=1, input_axis=0),
            StoredTensor(name="qzeros", shape=(groups, words), dtype="int32",
                         output_axis=1, input_axis=0),
            StoredTensor(name="scales", shape=(groups, spec.out_size), dtype="float32",
                         output_axis=1, input_axis=0),
            StoredTensor(name="g_idx", shape=(spec.in_size,), dtype="int32", input_axis=0,
                         is_per_part=True, default=-1),
        )  # fmt: skip

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix, its inputs in the order of their groups."""
        from dovetail_plugins.quantization._grouped import group_order, grouped_weight
        from dovetail_plugins.quantization._int32 import unpack

        values = unpack(tensors["qweight"], self.bits, axis=0).T
        zeros = unpack(tensors["qzeros"], self.bits, axis=1).T.float()
        group = values.shape[1] if self.group < 0 else self.group
        order = group_order(tensors["g_idx"], group)
        if order is not None:
            values = values[:, order]
        return grouped_weight(
            values.contiguous(),
            tensors["scales"].T.contiguous(),
            zeros if self.keeps_zeros else zeros + 1,
            bits=self.bits,
            group=group,
            order=order,
        )


class Gptq(StoredMethod):
    """One layout for all widths, and the layouts that other writers call GPTQ too."""

    info = Info(
        summary="GPTQ checkpoints, 2 to 8 bits in groups",
        source="https://github.com/ModelCloud/GPTQModel",
    )
    Options = IntegerOptions
    stored_as: ClassVar[tuple[str, ...]] = ("gptq",)
    default_format: ClassVar[str] = "gptq"
    ignored = (".workspace",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.format = self._format()
        self.dynamic: Mapping[str, Any] = self.config.get("dynamic") or {}
        lists = self.config.get("modules_in_block_to_quantize") or ()
        self.listed = tuple(name for names in lists for name in listed(names))
        self.usual = self._checked(
            GptqLayout(
                bits=int(self.config.get("bits", 4)),
                group=int(self.config.get("group_size", 128)),
                keeps_zeros=self.format == "gptq_v2",
            )
        )

    def _format(self) -> str:
        """Return the layout that config.json names. Raises: ConfigError for another."""
        name = self.config.get("checkpoint_format") or self.config.get("format")
        if self.config.get("is_marlin_format"):
            name = "marlin"
        name = name or self.default_format
        if name not in FORMATS:
            raise self.refuse(f'the layout "{name}" is not read; {", ".join(FORMATS)} are.')
        return str(name)

    def _checked(self, layout: GptqLayout) -> GptqLayout:
        if layout.bits not in BITS:
            known = ", ".join(map(str, BITS))
            raise self.refuse(f"{layout.bits} bits are not read; {known} are.")
        return layout

    def is_plain(self, spec: LinearSpec) -> bool:
        """Return whether the layer is in full precision: `lm_head` and `dynamic` say so too."""
        stored = self.names.is_plain(spec.name)
        if stored is not None:
            return stored
        return super().is_plain(spec) or self._changed(spec) is None

    def layout(self, spec: LinearSpec) -> StorageLayout:
        """Return the layout of a layer."""
        layout = self._changed(spec) or self.usual
        if self.format in ("gptq", "gptq_v2"):
            return layout
        from dovetail_plugins.quantization._marlin import MarlinLayout, SparseMarlinLayout

        stored = MarlinLayout if self.format == "marlin" else SparseMarlinLayout
        return stored(
            bits=layout.bits,
            group=layout.group,
            is_grouped=spec.has_groups(layout.group),
            where=self.where,
        )

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer in GPTQ's layout, or in tiles."""
        names = TILES.get(self.format)
        if names is not None:
            values, scales = (layer.tensors.get(name) for name in names)
            if values is None or scales is None:
                return None
            return tiles_estimate(
                values,
                scales,
                is_sparse=self.format == "marlin_24",
                packs=packs,
            )
        return qweight_estimate(
            layer,
            is_symmetric=bool(self.config.get("sym", True)),
            packs=packs,
        )

    def _changed(self, spec: LinearSpec) -> GptqLayout | None:
        """Return the usual layout with what `dynamic` changes of it, None for a layer left out."""
        names = parts_of(spec.name)
        if self.listed and spec.name != HEAD and not any(n.endswith(self.listed) for n in names):
            return None
        usual: GptqLayout | None = self.usual
        return one_for_parts(spec.name, self._look_up, usual, where=self.where)

    def _look_up(self, name: str) -> GptqLayout | None:
        """Return the layout of one checkpoint layer. The first expression that matches counts."""
        for pattern, changes in self.dynamic.items():
            if pattern.startswith(LEFT_ALONE):
                if self._matches(pattern.removeprefix(LEFT_ALONE), name):
                    return None
            elif self._matches(pattern.removeprefix(CHANGED), name):
                return self._checked(
                    replace(
                        self.usual,
                        bits=int(changes.get("bits", self.usual.bits)),
                        group=int(changes.get("group_size", self.usual.group)),
                    )
                )
        return self.usual

    def _matches(self, pattern: str, name: str) -> bool:
        try:
            names = self.names.matched(name, pattern)
            return any(re.match(pattern, one) is not None for one in names)
        except re.error as error:
            raise self.refuse(
                f"dynamic: {pattern!r} is not a regular expression: {error}."
            ) from error
