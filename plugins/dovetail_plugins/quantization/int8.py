"""int8: any full-precision checkpoint becomes 8-bit while it loads, activations on the fly.

Weights get one scale per output and group of inputs, activations one per group of inputs: outliers
only reduce the precision of their group. Rounding to nearest, no calibration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec
from dovetail_plugins.layers.stored.rounding import IntegerOptions
from dovetail_plugins.quantization._estimates import int8_estimate
from dovetail_plugins.quantization._while_loading import WhileLoading

GROUPS = (0, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Options(IntegerOptions):
    """Options of int8."""

    group: int = field(
        default=128,
        metadata={"choices": GROUPS, "help": "inputs that share a scale; 0: all of an output's"},
    )
    skip: tuple[str, ...] = field(
        default=(),
        metadata={"help": "parts of layer names that stay in full precision, e.g. lm_head"},
    )


class Int8(WhileLoading):
    """8-bit weights per output and group, 8-bit or float activations."""

    info = Info(
        summary="8-bit weights and activations, quantized while loading",
        source="https://arxiv.org/abs/2208.07339",
    )
    Options = Int8Options

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a full-precision layer."""
        if self.is_skipped(layer.name):
            return None
        group: int = self.options.group
        return int8_estimate(layer, group, packs=packs)

    def _quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the 8-bit method."""
        return self.in_int8(self.options.group)

    def _skipped(self) -> tuple[str, ...]:
        options: Any = self.options
        return tuple(options.skip)
