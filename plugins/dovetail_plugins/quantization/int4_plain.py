"""int4-plain: any full-precision checkpoint becomes 4-bit while it loads, rounded to nearest.

One scale per group of inputs, found without a search (see int4). The head, whose errors reach the
logits directly, is 8-bit unless `head` says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec
from dovetail_plugins.layers.stored.rounding import INT8, IntegerOptions
from dovetail_plugins.quantization._estimates import int8_estimate, made_estimate
from dovetail_plugins.quantization._while_loading import WhileLoading

GROUPS = (32, 64, 128)
HEAD = "lm_head"
HEAD_GROUP = 128
"""Inputs of a head in 8 bits that share a scale."""
HEADS = ("int4", "int8", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4PlainOptions(IntegerOptions):
    """Options of int4-plain."""

    group: int = field(
        default=64, metadata={"choices": GROUPS, "help": "inputs that share a scale"}
    )
    symmetric: bool = field(
        default=True, metadata={"help": "without a zero point per group; less memory, more error"}
    )
    head: str = field(
        default="int8",
        metadata={"choices": HEADS, "help": "how the layer before the logits is kept"},
    )
    skip: tuple[str, ...] = field(
        default=(), metadata={"help": "parts of layer names that stay in full precision"}
    )


class Int4Plain(WhileLoading):
    """4-bit weights per output and group, 8-bit or float activations."""

    info = Info(summary="4-bit weights in groups, rounded to nearest while loading")
    Options = Int4PlainOptions

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a full-precision layer."""
        options: Any = self.options
        if self.is_skipped(layer.name):
            return None
        if layer.name == HEAD and options.head == "int8":
            return int8_estimate(layer, HEAD_GROUP, packs=packs)
        return made_estimate(
            layer,
            bits=4,
            group=options.group,
            scale_bytes=2,
            has_zeros=not options.symmetric,
            packs=packs,
            format=f"int4, groups of {options.group}",
            takes=INT8,
        )

    def _quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the 4-bit method, or the head's."""
        from dovetail_kernels.gemm.weight import quantize_int4
        from dovetail_plugins.layers.stored.matrix_linear import ConvertedLinear

        options: Any = self.options
        if spec.name == HEAD and options.head == "int8":
            return self.in_int8(HEAD_GROUP)
        convert = partial(
            quantize_int4,
            group=options.group,
            format="int4",
            is_symmetric=options.symmetric,
        )
        return ConvertedLinear(convert, activations=self.activations)

    def _skipped(self) -> tuple[str, ...]:
        options: Any = self.options
        return (*options.skip, HEAD) if options.head == "none" else tuple(options.skip)
