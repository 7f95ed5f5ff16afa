"""Checkpoints in Marlin's own layout: 4-bit tiles as tensor cores read them, without zero points.

Such a checkpoint says quant_method "gptq" with checkpoint_format "marlin", or "marlin". The layout
is in `_marlin.py`. Here it is read back into plain rows and packed for the device at hand.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.quantization.gptq import Gptq


class Marlin(Gptq):
    """GPTQ's config, Marlin's tensors."""

    info = Info(
        summary="Marlin checkpoints, 4 bits in tiles",
        source="https://github.com/IST-DASLab/marlin",
    )
    stored_as = ("marlin", "gptq")
    default_format = "marlin"
