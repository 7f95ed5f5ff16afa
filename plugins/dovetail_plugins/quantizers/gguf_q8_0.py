"""gguf-q8_0: a GGUF file of 8-bit blocks: 32 weights share a float16 scale."""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.quantizers._gguf import GgufQuantizer


class GgufQ8(GgufQuantizer):
    """Q8_0 for all matrices, the token table and the head too."""

    info = Info(
        summary="one GGUF file: 8 bits in groups of 32 (Q8_0)",
        source="https://github.com/ggml-org/ggml/blob/master/docs/gguf.md",
    )
    type_name = "Q8_0"
    file_type = 7
