"""gguf-*: a checkpoint as one GGUF file, in the types of one of llama.cpp's mixtures.

What each mixture is: `gguf.writing.mixtures`.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.quantizers._gguf import GgufQuantizer

_SOURCE = "https://github.com/ggml-org/ggml/blob/master/docs/gguf.md"


class GgufQ8(GgufQuantizer):
    """Q8_0."""

    info = Info(summary="one GGUF file: 8 bits in groups of 32 (Q8_0)", source=_SOURCE)
    mixture = "q8_0"


class GgufQ6K(GgufQuantizer):
    """Q6_K."""

    info = Info(summary="one GGUF file: 6.6 bits a weight (Q6_K)", source=_SOURCE)
    mixture = "q6_k"


class GgufQ5KM(GgufQuantizer):
    """Q5_K_M."""

    info = Info(
        summary="one GGUF file: 5.7 bits a weight (Q5_K), important matrices in Q6_K",
        source=_SOURCE,
    )
    mixture = "q5_k_m"


class GgufQ5KS(GgufQuantizer):
    """Q5_K_S."""

    info = Info(summary="one GGUF file: 5.5 bits a weight (Q5_K)", source=_SOURCE)
    mixture = "q5_k_s"


class GgufQ5(GgufQuantizer):
    """Q5_0."""

    info = Info(summary="one GGUF file: 5.5 bits a weight (Q5_0)", source=_SOURCE)
    mixture = "q5_0"


class GgufQ4KM(GgufQuantizer):
    """Q4_K_M."""

    info = Info(
        summary="one GGUF file: 4.8 bits a weight (Q4_K), important matrices in Q6_K",
        source=_SOURCE,
    )
    mixture = "q4_k_m"


class GgufQ4KS(GgufQuantizer):
    """Q4_K_S."""

    info = Info(
        summary="one GGUF file: 4.6 bits a weight (Q4_K), first layers in Q5_K", source=_SOURCE
    )
    mixture = "q4_k_s"


class GgufQ4(GgufQuantizer):
    """Q4_0."""

    info = Info(
        summary="one GGUF file: 4 bits in groups of 32 (Q4_0), embedding and head in 8 bits",
        source=_SOURCE,
    )
    mixture = "q4_0"


class GgufIq4Nl(GgufQuantizer):
    """IQ4_NL."""

    info = Info(
        summary="one GGUF file: 4.5 bits a weight on a curved scale (IQ4_NL)", source=_SOURCE
    )
    mixture = "iq4_nl"


class GgufIq4Xs(GgufQuantizer):
    """IQ4_XS."""

    info = Info(
        summary="one GGUF file: 4.3 bits a weight on a curved scale (IQ4_XS)", source=_SOURCE
    )
    mixture = "iq4_xs"


class GgufQ3KL(GgufQuantizer):
    """Q3_K_L."""

    info = Info(
        summary="one GGUF file: 3.4 bits a weight (Q3_K), important matrices in Q5_K",
        source=_SOURCE,
    )
    mixture = "q3_k_l"


class GgufQ3KM(GgufQuantizer):
    """Q3_K_M."""

    info = Info(
        summary="one GGUF file: 3.4 bits a weight (Q3_K), important matrices in Q4_K",
        source=_SOURCE,
    )
    mixture = "q3_k_m"


class GgufQ3KS(GgufQuantizer):
    """Q3_K_S."""

    info = Info(summary="one GGUF file: 3.4 bits a weight (Q3_K)", source=_SOURCE)
    mixture = "q3_k_s"


class GgufQ2K(GgufQuantizer):
    """Q2_K."""

    info = Info(
        summary="one GGUF file: 2.6 bits a weight (Q2_K), important matrices in Q3_K and Q4_K",
        source=_SOURCE,
    )
    mixture = "q2_k"


class GgufF16(GgufQuantizer):
    """F16."""

    info = Info(summary="one GGUF file: float16", source=_SOURCE)
    mixture = "f16"


class GgufBf16(GgufQuantizer):
    """BF16."""

    info = Info(summary="one GGUF file: bfloat16", source=_SOURCE)
    mixture = "bf16"
