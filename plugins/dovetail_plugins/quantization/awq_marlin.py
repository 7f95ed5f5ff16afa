"""AWQ checkpoints by the name of a GPU kernel: the same layout and arithmetic as "awq".

On GPUs that kernel repacks AWQ's layout as it loads. Here every device has its own packing, so the
name changes nothing; it exists for command lines that use it.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.quantization.awq import Awq


class AwqMarlin(Awq):
    """Another name for Awq."""

    info = Info(
        summary="AWQ checkpoints; the same as awq",
        source="https://github.com/IST-DASLab/marlin",
    )
    stored_as = ("awq_marlin", "awq")
