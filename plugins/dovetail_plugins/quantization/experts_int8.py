"""experts_int8: the experts of a mixture become 8-bit while they load; every other layer stays.

A scale per output, activations as the method int8 has them.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.quantization.int8 import Int8

EXPERTS = ".experts."


class ExpertsInt8(Int8):
    """8-bit experts."""

    info = Info(summary="8-bit experts, quantized while loading; other layers are unchanged")

    def is_skipped(self, name: str) -> bool:
        """Return whether a layer stays in full precision: any but experts."""
        return EXPERTS not in name or super().is_skipped(name)
