"""Families that an older transformers computes in another way than their checkpoints mean."""

from __future__ import annotations

import pytest

RIGHT_SINCE = (5, 24)
"""A version that computes all of them rightly; 5.17 does not."""
_ALL_CHANNELS = "norms all channels of a Mamba 2 mixer together, not each group of them"
OTHERWISE = {
    "GptOssForCausalLM": "does not read swiglu_limit",
    "MiniMaxM2ForCausalLM": "rotates whole heads, whatever rotary_dim says",
    "Gemma3nForCausalLM": "reads beyond the table of per-layer vectors",
    "UMT5ForConditionalGeneration": "scales the decoder's states, whatever the checkpoint says",
    **dict.fromkeys(
        ("Mamba2ForCausalLM", "BambaForCausalLM", "GraniteMoeHybridForCausalLM"), _ALL_CHANNELS
    ),
}


def skip_where_older(architecture: str) -> None:
    """Skip a test of a family that the installed transformers computes otherwise."""
    import transformers

    installed = tuple(map(int, transformers.__version__.split(".")[:2]))
    if architecture in OTHERWISE and installed < RIGHT_SINCE:
        pytest.skip(f"transformers {transformers.__version__} {OTHERWISE[architecture]}")
