"""bitsandbytes: 4-bit codes (nf4, fp4) and int8, from the checkpoint or made while loading.

4 bits: `weight` uint8, two codes a byte, the first in the high bits, row after row;
`weight.absmax`, the scale of every 64 of them; `weight.quant_map`, the values of the 16 codes. With
double quantization absmax is uint8 itself: nested_quant_map[absmax] * nested_absmax[i // 256] +
nested_offset, the last in a JSON text stored as a tensor; it is undone while loading. 8 bits:
`weight` int8 [O, I] and `SCB` [O], 127 times the scale. LLM.int8 makes activations int8 with a
scale a token and multiplies outliers separately. Here, on a CPU, a group of inputs has a scale, so
outliers do not affect the others; a GPU leaves all of them in 16 bits. While loading: nf4, or the
type in the options. Source: https://github.com/bitsandbytes-foundation/bitsandbytes; Dettmers et
al., QLoRA, 2023 (nf4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, StoredTensor
from dovetail.json_values import json_value
from dovetail_plugins.layers.stored.checkpoint_method import StorageLayout, listed
from dovetail_plugins.layers.stored.rounding import AUTO, INTEGERS
from dovetail_plugins.quantization._either import EitherMethod, SkipOptions
from dovetail_plugins.quantization._estimates import bytes_estimate, codes_estimate, matrix_of

if TYPE_CHECKING:
    import torch

    from dovetail_kernels.gemm.weight import Weight

BLOCK = 64
KINDS = ("nf4", "fp4", "int8")
STATE = ".weight.quant_state.bitsandbytes__"
NESTED = (".weight.absmax", ".weight.nested_absmax", ".weight.nested_quant_map")
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
"""Codes 0 to 7; 8 to 15 are the same, negative."""
_UNREADABLE = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""Exceptions from JSON that is no quantization state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BitsAndBytesOptions(SkipOptions):
    """Options of bitsandbytes."""

    kind: str = field(
        default="nf4", metadata={"choices": KINDS, "help": "what weights become while loading"}
    )
    activations: str = field(default=AUTO, metadata=INTEGERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FourBits:
    """Codes of a table, 64 to a scale, counted through all rows."""

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the codes, the scales (made float while loading) and the table."""
        rows, inputs = spec.out_size, spec.in_size
        blocks = spec.num_groups(BLOCK)
        is_whole = max(spec.full_in_size, inputs) % BLOCK == 0
        scales = (rows, blocks) if is_whole else (-(-rows * inputs // BLOCK),)
        return (
            StoredTensor(name="weight", shape=(rows, inputs // 2), dtype="uint8",
                         output_axis=0, input_axis=1),
            StoredTensor(name="absmax", shape=scales, dtype="float32", output_axis=0,
                         input_axis=1 if is_whole else None),
            StoredTensor(name="quant_map", shape=(16,), dtype="float32", is_per_part=True),
        )  # fmt: skip

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix. Raises: ConfigError"""
        from dovetail_kernels.gemm.weight import Weight
        from dovetail_plugins.quantization._float_formats import nibbles

        codes = nibbles(tensors["weight"], is_high_first=True)
        outputs, inputs = codes.shape
        scales, group = tensors["absmax"], gcd(inputs, BLOCK)
        if group % 8:
            raise ConfigError(f"rows of {inputs} inputs are not read in blocks of {BLOCK}.")
        if scales.dim() == 1:
            scales = scales.repeat_interleave(BLOCK // group)
            scales = scales[: outputs * inputs // group].view(outputs, -1)
        return Weight(
            format="table4",
            values=codes,
            scales=scales,
            table=tensors["quant_map"],
            group=group,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EightBits:
    """int8 with a scale per output."""

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the values and 127 times their scales."""
        return (
            StoredTensor(name="weight", shape=(spec.out_size, spec.in_size), dtype="int8",
                         output_axis=0, input_axis=1),
            StoredTensor(name="SCB", shape=(spec.out_size,), dtype="float32", output_axis=0),
        )  # fmt: skip

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        from dovetail_plugins.quantization._int8_formats import int8_weight

        scales = tensors["SCB"] / 127
        return int8_weight(tensors["weight"], scales)


class BitsAndBytes(EitherMethod):
    """4-bit codes and int8."""

    info = Info(
        summary="bitsandbytes: nf4, fp4 and int8 weights, stored or made while loading",
        source="https://github.com/bitsandbytes-foundation/bitsandbytes",
    )
    Options = BitsAndBytesOptions
    stored_as = ("bitsandbytes",)
    ignored = (".weight_format",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.skipped += listed(self.config.get("llm_int8_skip_modules") or ())
        self.is_8_bit = bool(self.config.get("load_in_8bit", self.config.get("_load_in_8bit")))
        is_4_bit = bool(self.config.get("load_in_4bit", self.config.get("_load_in_4bit")))
        if self.is_stored and self.is_8_bit == is_4_bit:
            raise self.refuse("one of load_in_4bit and load_in_8bit must be true.")

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a stored layer, with rows in whole blocks, or of a full-precision
        one quantized while it loads."""
        if self.is_stored:
            return self._stored_estimate(layer, packs=packs)
        weight = None if self.is_skipped(layer.name) else matrix_of(layer)
        if weight is None:
            return None
        outputs, inputs = weight.shape
        if self.options.kind == "int8":
            return bytes_estimate(weight.num_values, outputs)
        return codes_estimate(
            outputs, inputs, group=BLOCK, scale_bytes=4, has_outer=False, packs=packs
        )

    def _stored_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        weight, scales = layer.tensors.get("weight"), layer.tensors.get("weight.absmax")
        if weight is None or weight.dtype not in ("int8", "uint8"):
            return None
        if weight.dtype == "int8":
            return bytes_estimate(weight.num_values, weight.shape[0])
        if scales is None:
            return None
        return codes_estimate(
            1, BLOCK * scales.num_values, group=BLOCK, scale_bytes=4, has_outer=False, packs=packs
        )

    def layout(self, spec: LinearSpec) -> StorageLayout:
        """Return the layout of every layer except the head and llm_int8_skip_modules."""
        return EightBits() if self.is_8_bit else FourBits()

    def quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the method that makes a weight 4-bit or int8."""
        from dovetail_kernels.gemm.weight import quantize_int8
        from dovetail_plugins.layers.stored.matrix_linear import ConvertedLinear

        kind = self.options.kind
        convert = quantize_int8 if kind == "int8" else partial(_quantize, kind=kind)
        return ConvertedLinear(convert, activations=self.activations)

    def checkpoint_tensors(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Return tensors without dots in their last names, scales as floats."""
        pending: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for name, tensor in tensors:
            leaf = next((end for end in NESTED if name.endswith(end)), None)
            if STATE in name:
                layer, leaf = name[: name.index(STATE)], STATE
            elif leaf is not None:
                layer = name.removesuffix(leaf)
            elif name.endswith(".weight.quant_map"):
                yield name.replace(".weight.quant_map", ".quant_map"), tensor
                continue
            else:
                yield name, tensor
                continue
            pending[layer][leaf] = tensor
            scales = self._scales(layer, pending[layer])
            if scales is not None:
                del pending[layer]
                yield f"{layer}.absmax", scales
        for layer, parts in pending.items():
            yield from ((f"{layer}{leaf}", tensor) for leaf, tensor in parts.items())

    def _scales(self, layer: str, found: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Return a layer's scales once all they are made of has come."""
        import torch

        if STATE not in found or NESTED[0] not in found:
            return None
        scales = found[NESTED[0]]
        try:
            state = json_value(bytes(found[STATE].tolist()))
            block, offset = int(state["blocksize"]), float(state.get("nested_offset", 0.0))
            nested_block = int(state.get("nested_blocksize", 1))
            outputs, inputs = (int(size) for size in state["shape"])
        except _UNREADABLE as error:
            raise ConfigError(
                f"the quantization state of {layer} cannot be read: {error}.", where=self.where
            ) from error
        if block != BLOCK:
            raise self.refuse(f"{layer} has blocks of {block} values; {BLOCK} are read.")
        if scales.dtype == torch.uint8:
            if not all(end in found for end in NESTED):
                return None
            table, largest = found[NESTED[2]].float(), found[NESTED[1]].float()
            spread = largest.repeat_interleave(nested_block)[: scales.numel()]
            scales = table[scales.int()] * spread + offset
        return scales.float().view(outputs, -1) if inputs % BLOCK == 0 else scales.float()


def _quantize(weight: torch.Tensor, *, kind: str) -> Weight:
    """Return the nearest codes of nf4 or fp4. Shapes: weight [N, K]"""
    import torch

    from dovetail_kernels.gemm.weight import quantize_table4

    table = torch.tensor(NF4 if kind == "nf4" else (*FP4, *(-value for value in FP4)))
    return quantize_table4(weight, BLOCK, table)
