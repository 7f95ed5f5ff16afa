"""gguf-q4_0: a GGUF file of 4-bit blocks: 32 weights share a float16 scale.

The token table and the head are Q8_0.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.quantizers._gguf import GgufQuantizer


class GgufQ4(GgufQuantizer):
    """Q4_0 for the matrices of blocks."""

    info = Info(
        summary="one GGUF file: 4 bits in groups of 32 (Q4_0), embedding and head in 8 bits",
        source="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md",
    )
    type_name = "Q4_0"
    file_type = 2
