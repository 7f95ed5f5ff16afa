"""Whether activations become e4m3 for products with weights in e4m3: if requested and supported.

Imports no torch before a layer is built. Knows no checkpoint: a method says for which of its
layers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cache

from dovetail.interfaces.quantization import LinearSpec
from dovetail_plugins.layers.stored.rounding import (
    BFLOAT16,
    BFLOAT16_HELP,
    FLOAT,
    FLOAT8,
    ActivationOptions,
)

log = logging.getLogger(__name__)

CHOICES = {
    "choices": (FLOAT8, BFLOAT16, FLOAT),
    "help": "what activations become in a product: float8: where a layer is meant so, a GPU that "
    "can makes them 8-bit floats, a scale a row, which is faster; there and elsewhere also "
    f"bfloat16: {BFLOAT16_HELP}; float: not rounded",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Options(ActivationOptions):
    """Options of methods whose layers may be meant for activations in 8-bit floats."""

    activations: str = field(default=FLOAT8, metadata=CHOICES)


def rounds(activations: str, spec: LinearSpec) -> bool:
    """Return whether activations of a layer that is meant so become e4m3 on its device."""
    return activations not in (BFLOAT16, FLOAT) and _device_rounds(spec.device)


@cache
def _device_rounds(device: str) -> bool:
    """Return whether a device multiplies two 8-bit floats. The log says it, once a device."""
    import torch

    from dovetail_kernels.gpu import float8_reason

    reason = float8_reason(torch.device(device))
    if torch.device(device).type == "cpu" and reason is not None:
        return False
    outcome = (
        "become 8-bit floats, a scale a row" if reason is None else f"stay as they are: {reason}"
    )
    log.info("activations of float8 layers %s", outcome)
    return reason is None
