"""Facts of models with an encoder of texts and one of images, whose vectors are compared."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

WHOLE = ModelFacts(media=("image",), media_alone=True)
CLIP_TEXT = ModelFacts(
    positions="learned",
    is_encoder=True,
    output_size="projection_dim",
    defaults={
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "projection_dim": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
    },
)
SIGLIP_TEXT = dataclasses.replace(
    CLIP_TEXT,
    output_size="projection_size",
    defaults={
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 64,
    },
)

PAGES = dataclasses.replace(WHOLE, overflows_in_float16=True)

CLIP = Value(summary="CLIP", value=WHOLE)
CLIP_TEXT_MODEL = Value(summary="CLIP's encoder of texts", value=CLIP_TEXT)
SIGLIP = Value(summary="SigLIP", value=WHOLE)
SIGLIP_TEXT_MODEL = Value(summary="SigLIP's encoder of texts", value=SIGLIP_TEXT)
SIGLIP2 = Value(summary="SigLIP 2", value=WHOLE)
SIGLIP2_TEXT_MODEL = Value(summary="SigLIP 2's encoder of texts", value=SIGLIP_TEXT)
COLPALI = Value(summary="ColPali", value=PAGES)
COLQWEN2 = Value(summary="ColQwen2 and ColQwen2.5", value=WHOLE)
COLMODERNVBERT = Value(summary="ColModernVBERT", value=WHOLE)
