"""Layouts of compressed-tensors layers: the tensors of each format, and what matrix they mean.

packed: `weight_packed` int32 [O, I * bits / 32], lowest bits first, `weight_scale` [O, groups] (or
[1] for all), `weight_zero_point` int32 [O * bits / 32, groups] if it is not symmetric, and
`weight_g_idx` [I], the group of every input, if groups are not contiguous. Values and zero points
are stored plus half of their range. whole: `weight` int8 or e4m3 [O, I], `weight_scale` [1],
[O, 1], [O, groups] or of blocks, `weight_zero_point` like it. FP4: `weight_packed` uint8
[O, I / 2], `weight_scale` e4m3 [O, I / 16] divided by `weight_global_scale` [1] (NVFP4), or
exponents uint8 [O, I / 32] (MXFP4). bitmask: instead of `weight`, `compressed` [O, I / 2] with its
nonzero values, and `bitmask` uint8 [O, I / 8], lowest bit first, with their positions.
Source: https://github.com/vllm-project/compressed-tensors (compressors of 0.20; bitmask: of 0.9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.quantization import LinearSpec, StoredTensor, weight_tensor
from dovetail_kernels.gemm.weight import Weight
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout
from dovetail_plugins.layers.stored.matrix_linear import as_stored
from dovetail_plugins.quantization._float8_layouts import BlockScale
from dovetail_plugins.quantization._float8_rounding import rounds
from dovetail_plugins.quantization._float_formats import e2m1_weight, e8m0, float8_weight
from dovetail_plugins.quantization._grouped import group_order, grouped_weight
from dovetail_plugins.quantization._int32 import unpack
from dovetail_plugins.quantization._marlin import SparseMarlinLayout

if TYPE_CHECKING:
    from dovetail_plugins.quantization.compressed_tensors import Scheme

INT8, E4M3 = "int8", "float8_e4m3fn"
SPARSE_TILES = ("weight_packed", "scale_packed", "meta")


def layout_of(
    scheme: Scheme | None, spec: LinearSpec, activations: str, where: str
) -> StorageLayout | None:
    """Return the layout of a layer by its scheme. Raises: ConfigError for what no format means."""
    if scheme is None:
        return None
    kind = scheme.format
    if kind == "marlin-24":
        return SparseMarlinLayout(
            bits=scheme.bits,
            group=scheme.group or -1,
            is_grouped=spec.has_groups(scheme.group),
            where=where,
            names=SPARSE_TILES,
        )
    if kind in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
        return Float4Layout(group=scheme.group, is_mx=kind.startswith("mx"))
    if kind == "pack-quantized" and not scheme.is_float:
        return PackedLayout(scheme=scheme, in_size=spec.in_size)
    if kind != "pack-quantized" and not scheme.is_float and scheme.strategy != "block":
        return IntLayout(scheme=scheme)
    if scheme.is_float and scheme.bits == 8 and kind != "pack-quantized":
        return _float8_layout(scheme, spec, activations, where)
    type = "float" if scheme.is_float else "int"
    raise ConfigError(
        f'{scheme.bits}-bit {type} weights per {scheme.strategy} are not a layout of "{kind}".',
        where=where,
    )


def _float8_layout(scheme: Scheme, spec: LinearSpec, activations: str, where: str) -> StorageLayout:
    """Return the layout of a layer in e4m3."""
    is_mx = scheme.format.startswith("mx")
    is_meant = scheme.has_float8_inputs and not is_mx
    is_rounded = is_meant and rounds(activations, spec)
    if scheme.strategy == "block":
        return BlockScale(
            name="weight_scale", block=scheme.block, where=where, has_float8_activations=is_rounded
        )
    return Float8Layout(scheme=scheme, is_mx=is_mx, has_float8_activations=is_rounded)


def scale_tensor(
    scheme: Scheme, spec: LinearSpec, *, name: str = "weight_scale", dtype: str = "float32"
) -> StoredTensor:
    """Return the tensor of scales (or of something laid out like them) of a scheme."""
    if scheme.strategy == "tensor":
        return StoredTensor(name=name, shape=(1,), dtype=dtype, is_per_part=True)
    shape = (spec.out_size, spec.num_groups(scheme.group))
    return StoredTensor(name=name, shape=shape, dtype=dtype, output_axis=0, input_axis=1)


def spread(scales: torch.Tensor, outputs: int) -> torch.Tensor:
    """Return scales as a column a group. Shapes: [1] or [N, groups] -> [N, groups]"""
    return scales.expand(outputs, 1) if scales.dim() == 1 else scales


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayout:
    """Integers of any width in int32 words, along the inputs."""

    scheme: Scheme
    in_size: int

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the packed weight, its scales, zero points and order."""
        bits = self.scheme.bits
        scales = scale_tensor(self.scheme, spec)
        stored = [
            StoredTensor(name="weight_packed", shape=(spec.out_size, -(-spec.in_size * bits // 32)),
                         dtype="int32", output_axis=0, input_axis=1),
            scales,
            StoredTensor(name="weight_g_idx", shape=(spec.in_size,), dtype="int32", input_axis=0,
                         is_per_part=True, default=-1),
        ]  # fmt: skip
        if not self.scheme.is_symmetric:
            words = -(-spec.out_size * bits // 32)
            stored.append(
                StoredTensor(name="weight_zero_point", shape=(words, scales.shape[-1]),
                             dtype="int32", output_axis=0, input_axis=1)
            )  # fmt: skip
        return tuple(stored)

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix, its inputs in the order of their groups."""
        bits = self.scheme.bits
        values = unpack(tensors["weight_packed"], bits, axis=1)[:, : self.in_size]
        scales = spread(tensors["weight_scale"], len(values))
        group = self.scheme.group if self.scheme.group > 0 else self.in_size
        order = group_order(tensors["weight_g_idx"], group)
        packed_weight = grouped_weight(
            (values if order is None else values[:, order]).contiguous(),
            scales,
            self._zeros(tensors, scales),
            bits=bits,
            group=group,
            order=order,
        )
        return replace(packed_weight, has_token_scales=self.scheme.has_token_scales)

    def _zeros(self, tensors: Mapping[str, torch.Tensor], scales: torch.Tensor) -> torch.Tensor:
        """Return the zero points, of unsigned values. Shapes: scales [N, groups] -> the same"""
        if self.scheme.is_symmetric:
            return torch.full(scales.shape, float(2 ** (self.scheme.bits - 1)))
        found = unpack(tensors["weight_zero_point"], self.scheme.bits, axis=0)
        return found[: len(scales)].float()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntLayout:
    """Integers, one a byte."""

    scheme: Scheme

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the weight, its scales and zero points."""
        stored = (weight_tensor(spec, INT8), scale_tensor(self.scheme, spec))
        if self.scheme.is_symmetric:
            return stored
        return (*stored, scale_tensor(self.scheme, spec, name="weight_zero_point", dtype=INT8))

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        half = 2 ** (self.scheme.bits - 1)
        values = tensors["weight"]
        scales = spread(tensors["weight_scale"], len(values))
        zeros = tensors.get("weight_zero_point")
        points = torch.zeros_like(scales) if zeros is None else spread(zeros, len(values)).float()
        packed_weight = grouped_weight(
            (values.to(torch.int16) + half).to(torch.uint8),
            scales,
            points + half,
            bits=self.scheme.bits,
        )
        return replace(packed_weight, has_token_scales=self.scheme.has_token_scales)


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Layout:
    """e4m3 with a scale for the matrix, every output or every group of inputs."""

    scheme: Scheme
    is_mx: bool = False
    has_float8_activations: bool = False

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the weight and its scales."""
        dtype = "uint8" if self.is_mx else "float32"
        return weight_tensor(spec, E4M3), scale_tensor(self.scheme, spec, dtype=dtype)

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        scales = tensors["weight_scale"]
        block = (1, self.scheme.group) if self.scheme.group else None
        return float8_weight(
            tensors["weight"],
            e8m0(scales) if self.is_mx else scales,
            block,
            has_float8_activations=self.has_float8_activations,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Float4Layout:
    """e2m1 in groups; `is_mx`: their scales are powers of two, and there is no global scale."""

    group: int
    is_mx: bool

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the packed weight, the groups' scales and the matrix's."""
        rows, inputs, groups = spec.out_size, spec.in_size, spec.num_groups(self.group)
        dtype = "uint8" if self.is_mx else E4M3
        stored = (
            StoredTensor(name="weight_packed", shape=(rows, inputs // 2), dtype="uint8",
                         output_axis=0, input_axis=1),
            StoredTensor(name="weight_scale", shape=(rows, groups), dtype=dtype,
                         output_axis=0, input_axis=1),
        )  # fmt: skip
        if self.is_mx:
            return stored
        outer = StoredTensor(
            name="weight_global_scale", shape=(1,), dtype="float32", is_per_part=True
        )
        return (*stored, outer)

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        outer = None if self.is_mx else tensors["weight_global_scale"].reciprocal()
        return e2m1_weight(tensors["weight_packed"], tensors["weight_scale"], outer)


@dataclass(frozen=True, slots=True, kw_only=True)
class BitmaskLayout:
    """Two of every four inputs, and their positions. `inner` is the layout of the dense weight,
    None for one in full precision."""

    inner: StorageLayout | None

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the nonzero values and the bitmask instead of the weight."""
        plain = (weight_tensor(spec, spec.weight_dtype or spec.dtype),)
        dense = plain if self.inner is None else self.inner.tensors(spec)
        stored = []
        for tensor in dense:
            if tensor.name != "weight":
                stored.append(tensor)
                continue
            for name, per, dtype in (("compressed", 2, tensor.dtype), ("bitmask", 8, "uint8")):
                shape = (spec.out_size, spec.in_size // per)
                stored.append(
                    StoredTensor(name=name, shape=shape, dtype=dtype, output_axis=0, input_axis=1)
                )
        return tuple(stored)

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix, dense."""
        dense = dense_of(tensors["compressed"], tensors["bitmask"])
        if self.inner is None:
            return as_stored(dense)
        return self.inner.weight({**tensors, "weight": dense})


def dense_of(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return a dense matrix. Shapes: values [N, K / 2], mask [N, K / 8] -> [N, K]

    Raises: ConfigError when the mask has another number of places than there are values.
    """
    is_kept = ((mask.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(1).bool()
    if int(is_kept.sum()) != values.numel():
        raise ConfigError(
            f"a bitmask has {int(is_kept.sum())} places for {values.numel()} values.",
            where="checkpoint",
            fix="download the checkpoint again; it is damaged.",
        )
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[values.element_size()]
    dense = torch.zeros(is_kept.shape, dtype=bits)
    dense[is_kept] = values.contiguous().view(bits).flatten()
    return dense.view(values.dtype)
