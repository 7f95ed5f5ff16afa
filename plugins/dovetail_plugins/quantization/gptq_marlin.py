"""GPTQ checkpoints by the name of a GPU kernel: the same layout and arithmetic as "gptq".

On GPUs that kernel repacks GPTQ's layout as it loads. Here every device has its own packing, so the
name changes nothing; it exists for command lines that use it.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.quantization.gptq import Gptq


class GptqMarlin(Gptq):
    """Another name for Gptq."""

    info = Info(
        summary="GPTQ checkpoints; the same as gptq",
        source="https://github.com/IST-DASLab/marlin",
    )
    stored_as = ("gptq_marlin", "gptq")
