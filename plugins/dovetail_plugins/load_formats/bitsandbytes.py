"""bitsandbytes: files as `auto` reads them; the name also selects the quantization of that name.

The quantization itself is dovetail_plugins.quantization.bitsandbytes.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats.auto import Auto


class BitsAndBytes(Auto):
    """auto by another name."""

    info = Info(summary="the same as auto, with --quantization bitsandbytes")
