"""Layouts of float8 layers: a `weight` in e4m3 and its scale, per matrix, per output or per block.

`has_float8_activations`: the layers' activations become e4m3 as well (see `_float8_rounding`).
Imports no torch. Shape letters: O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.errors import ConfigError
from dovetail.interfaces.quantization import LinearSpec, StoredTensor, weight_tensor

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

E4M3 = "float8_e4m3fn"


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeScale:
    """One scale for every matrix; fused ones have one each."""

    name: str = "weight_scale"
    has_float8_activations: bool = False

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the weight [O, I] and its scale []."""
        scale = StoredTensor(name=self.name, shape=(), dtype="float32", is_per_part=True)
        return weight_tensor(spec, E4M3), scale

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        from dovetail_plugins.quantization._float_formats import float8_weight

        return float8_weight(
            tensors["weight"],
            tensors[self.name],
            has_float8_activations=self.has_float8_activations,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputScale:
    """A scale for every output."""

    name: str = "weight_scale"
    has_float8_activations: bool = False

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the weight [O, I] and the scales [O]."""
        scales = StoredTensor(
            name=self.name, shape=(spec.out_size,), dtype="float32", output_axis=0
        )
        return weight_tensor(spec, E4M3), scales

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        from dovetail_plugins.quantization._float_formats import float8_weight

        return float8_weight(
            tensors["weight"],
            tensors[self.name],
            has_float8_activations=self.has_float8_activations,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFloats:
    """4-bit floats (e2m1), two a byte, the first in the low bits; a scale for 32 inputs of an
    output, a power of two. DeepSeek-V4's experts are stored so."""

    name: str
    group: int = 32

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the weight [O, I / 2] and the scales [O, I / 32]."""
        groups = spec.num_groups(self.group)
        weight, scales = (
            StoredTensor(
                name=name, shape=(spec.out_size, size), dtype=dtype, output_axis=0, input_axis=1
            )
            for name, size, dtype in (
                ("weight", spec.in_size // 2, "int8"),
                (self.name, groups, "bfloat16"),
            )
        )
        return weight, scales

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        import torch

        from dovetail_plugins.quantization._float_formats import e2m1_weight

        return e2m1_weight(tensors["weight"].view(torch.uint8), tensors[self.name])


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScale:
    """A scale for every block of outputs and inputs. `where` is the path of config.json."""

    name: str
    block: tuple[int, int]
    where: str
    has_float8_activations: bool = False

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the weight [O, I] and the scales [O / block, I / block], rounded up.

        Blocks begin anew in every fused matrix. Raises: ConfigError
        """
        rows, columns = self.block
        across = spec.num_groups(columns)
        down = {-(-size // rows) for size in spec.out_sizes}
        is_even = len(spec.out_sizes) == 1 or all(size % rows == 0 for size in spec.out_sizes)
        if not is_even and len(down) > 1:
            raise ConfigError(
                f"blocks of {rows} do not fit into {spec.name}, whose parts have "
                f"{', '.join(map(str, spec.out_sizes))} outputs on a device.",
                where=self.where,
                fix="use fewer ranks, or a checkpoint with smaller blocks.",
            )
        total = -(-spec.out_size // rows) if is_even else next(iter(down))
        scales = StoredTensor(
            name=self.name,
            shape=(total, across),
            dtype="float32",
            output_axis=0 if is_even else None,
            input_axis=1,
            is_per_part=not is_even,
        )
        return weight_tensor(spec, E4M3), scales

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        from dovetail_plugins.quantization._float_formats import float8_weight

        return float8_weight(
            tensors["weight"],
            tensors[self.name],
            self.block,
            has_float8_activations=self.has_float8_activations,
        )
