"""The text part of checkpoints that also take media, run alone: its names, and ignored ones."""

from __future__ import annotations

from dataclasses import replace

from dovetail.interfaces.model import WeightMap

PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
"""Name prefixes of the text part in such checkpoints."""
BESIDE = (
    *("vision", "visual.", "projector.", "merger.", "aligner.", "image_newline"),
    *("generation_", "vqmodel."),
)
"""Parts of names of vision encoders, of projections to the text part, and of image generators."""


def text_part(usual: WeightMap) -> WeightMap:
    """Return the names of a text model's weights within a checkpoint that takes media."""
    return replace(usual, prefixes=(*PREFIXES, *usual.prefixes), ignored=(*usual.ignored, *BESIDE))
