"""Checkpoints in Marlin's layout for 2:4 sparse weights: 4 or 8 bits, half of the values left out.

Such a checkpoint says quant_method "gptq" with checkpoint_format "marlin_24", or "gptq_marlin_24".
The layout is in `_marlin.py`. On CPUs two values of 4 bits and their places among four inputs stay
one code of 12 bits, as many as the checkpoint has. Elsewhere, and of 8 bits, zeros are put back.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.quantization.gptq import Gptq


class GptqMarlin24(Gptq):
    """GPTQ's config, the tensors of sparse Marlin."""

    info = Info(
        summary="Marlin checkpoints of 2:4 sparse weights, 3 bits a weight on CPUs",
        source="https://github.com/IST-DASLab/Sparse-Marlin",
    )
    stored_as = ("gptq_marlin_24", "gptq")
    default_format = "marlin_24"
