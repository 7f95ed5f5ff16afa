"""GGUF files: every matrix in the type that the file has it in, several types in one model.

A layer's matrices of one type are one tensor, called by the type: the rows' bytes as the file has
them. The type of each is in the config made from the file's header.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and the types of ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, StoredTensor
from dovetail_plugins.gguf.blocks.types import BY_NAME, FLOAT_DTYPES, KEPT, QUANTIZED, TABLES
from dovetail_plugins.gguf.reading.names import HEAD, TABLE
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout, StoredMethod
from dovetail_plugins.layers.stored.layer_names import FUSED
from dovetail_plugins.layers.stored.rounding import BFLOAT16, FLOAT, INT8, IntegerOptions
from dovetail_plugins.quantization._estimates import TABLE_BYTES, value_bytes

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

PLAIN = "weight"
"""The tensor of parts that are not quantized."""


PARTS = FUSED | {
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_qkv", "in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "in_proj_fgb": ("f_a_proj", "g_a_proj", "b_proj"),
    "kv_proj": ("cross_k", "cross_v"),
}
"""A fused layer's last name -> the matrix of the file that each part is of."""


class Gguf(StoredMethod):
    """Integers in groups are multiplied as such, whatever type they come from; so are types with
    vector codes."""

    info = Info(
        summary="quantized weights of GGUF files, 1 to 8 bits in groups",
        source="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md",
    )
    Options = IntegerOptions
    has_own_rows = True
    stored_as = ("gguf",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.where = model.path
        types = self.config.get("types") or {}
        self.types: dict[str, str] = {str(module): str(name) for module, name in types.items()}
        unknown = sorted(set(self.types.values()) - set(BY_NAME))
        if unknown:
            raise self.refuse(f"there is no type {', '.join(unknown)}.")

    def is_plain(self, spec: LinearSpec) -> bool:
        """Return whether a layer is multiplied in the compute type: one in full precision, off the
        CPU. There its matrices keep the file's own type."""
        has_packed = any(name in QUANTIZED for name in self._types_of(spec))
        return not has_packed and spec.device != "cpu"

    def mixed(self, spec: LinearSpec) -> None:
        """Return None: a layout here has a type for each part."""

    def layout(self, spec: LinearSpec) -> StorageLayout:
        """Return the types of a layer's matrices."""
        types = self._types_of(spec)
        return Rows(
            types=tuple(name if name in QUANTIZED else PLAIN for name in types),
            float_dtype=self._float_of(types),
            where=self.where,
        )

    def table(self, spec: LinearSpec) -> LinearMethod | None:
        """Return the method of a table, the token table without a name, if it is stored
        quantized."""
        from dovetail_plugins.layers.stored.stored_linear import StoredLinear

        named = replace(spec, name=spec.name or TABLE)
        if named.name not in self.types or self.is_plain(named):
            return None
        rows = self.layout(named)
        return StoredLinear(rows.tensors, rows.weight, activations=self.activations)

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a matrix of any type; None for other tensors."""
        weight = layer.tensors.get("weight")
        if weight is None or len(weight.shape) < 2:
            return None
        if weight.dtype not in QUANTIZED:
            return StorageEstimate(
                num_values=weight.num_values,
                format=weight.dtype,
                num_bytes=weight.num_bytes,
                outputs=weight.shape[0],
                takes=BFLOAT16 if weight.dtype == BFLOAT16 else FLOAT,
            )
        bits, factor_bytes = KEPT[weight.dtype]
        blocks = weight.num_values // BY_NAME[weight.dtype].values
        shared = TABLE_BYTES if weight.dtype in TABLES else 0
        num_bytes = value_bytes(weight.num_values, bits, packs=packs) + blocks * factor_bytes
        if weight.dtype == "TQ1_0" and packs:  # twenty in four bytes, a row filled up
            rows, inputs = weight.num_values // weight.shape[-1], weight.shape[-1]
            num_bytes = rows * 4 * -(-inputs // 20) + blocks * factor_bytes
        return StorageEstimate(
            num_values=weight.num_values,
            format=f"{weight.dtype} in {bits:g} bits",
            num_bytes=num_bytes + shared,
            outputs=weight.shape[0],
            shared_bytes=shared,
            takes=BFLOAT16 if shared else INT8,
        )

    def _float_of(self, types: tuple[str, ...]) -> str:
        """Return the type of a layer's matrices in full precision: the one that holds them all."""
        found = {FLOAT_DTYPES.get(name, "float32") for name in types if name not in QUANTIZED}
        return found.pop() if len(found) == 1 else "float32"

    def _types_of(self, spec: LinearSpec) -> tuple[str, ...]:
        """Return the type of each fused matrix."""
        count = len(spec.out_sizes)
        holder, _, leaf = spec.name.rpartition(".")
        if leaf == HEAD or spec.name in self.types or leaf not in PARTS:
            return (self.types.get(spec.name, "F32"),) * count
        names = PARTS[leaf][:count]  # a layer may hold only queries
        names += names[:1] * (count - len(names))  # what follows gates the first
        return tuple(self.types.get(f"{holder}.{part}", "F32") for part in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A layer's matrices, each with its own type or (PLAIN) in full precision."""

    types: tuple[str, ...]
    where: str
    float_dtype: str = "float32"

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return a tensor for each type: the rows of all parts of that type.

        Raises: ConfigError if ranks would divide a block.
        """
        return tuple(self._tensor(spec, name) for name in dict.fromkeys(self.types))

    def _tensor(self, spec: LinearSpec, name: str) -> StoredTensor:
        parts = tuple(number for number, own in enumerate(self.types) if own == name)
        outputs = sum(spec.out_sizes[part] for part in parts)
        shape, dtype = (outputs, spec.in_size), self.float_dtype
        if name != PLAIN:
            known = BY_NAME[name]
            if spec.in_size % known.values:
                raise ConfigError(
                    f"{spec.name}: a rank's {spec.in_size} inputs do not divide into blocks of "
                    f"{known.values} ({name}).",
                    where=self.where,
                    fix="use fewer ranks.",
                )
            shape = (outputs, spec.in_size // known.values * known.block_bytes)
            dtype = "uint8"
        return StoredTensor(
            name=name,
            shape=shape,
            dtype=dtype,
            output_axis=0,
            input_axis=1,
            parts=None if len(parts) == len(self.types) else parts,
        )

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix of one part."""
        from dovetail_plugins.gguf.blocks.weight import weight_of
        from dovetail_plugins.layers.stored.matrix_linear import as_stored

        ((name, tensor),) = tensors.items()
        return as_stored(tensor) if name == PLAIN else weight_of(name, tensor)
