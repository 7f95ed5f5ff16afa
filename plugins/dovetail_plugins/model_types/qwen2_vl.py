"""Facts of the Qwen models that take images: of the whole, and of the text part."""

from __future__ import annotations

import dataclasses
from typing import Any

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types import qwen3, qwen3_moe

TEXT = ModelFacts(
    defaults={
        "vocab_size": 152064,
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 80,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
)
_WINDOWS = ("sliding_window", "use_sliding_window", "max_window_layers")
"""Settings of Qwen 3 that its text parts do not have."""


def _of_part(facts: ModelFacts, **defaults: Any) -> ModelFacts:
    """Return the facts of a text part: the text model's with other defaults."""
    inherited = {name: value for name, value in facts.defaults.items() if name not in _WINDOWS}
    changed = {**inherited, "max_position_embeddings": 128000, **defaults}
    return dataclasses.replace(facts, defaults=changed)


# Old checkpoints of Qwen2-VL store the text model's settings next to the encoder's.
WHOLE = dataclasses.replace(TEXT, media=("image", "video"))
WHOLE_3 = ModelFacts(media=("image", "video"))

QWEN2_VL = Value(summary="Qwen2-VL", value=WHOLE)
QWEN2_VL_TEXT = Value(summary="the text part of Qwen2-VL", value=TEXT)
WHOLE_2_5 = dataclasses.replace(WHOLE, positions_per_second=4.0)
QWEN2_5_VL = Value(summary="Qwen2.5-VL", value=WHOLE_2_5)
QWEN2_5_VL_TEXT = Value(summary="the text part of Qwen2.5-VL", value=TEXT)
QWEN3_VL = Value(summary="Qwen3-VL", value=WHOLE_3)
QWEN3_5 = Value(summary="Qwen3.5", value=ModelFacts(media=("image",)))
QWEN3_5_MOE = Value(summary="Qwen3.5 of experts", value=ModelFacts(media=("image",)))
QWEN3_VL_TEXT = Value(summary="the text part of Qwen3-VL", value=_of_part(qwen3.FACTS))
QWEN3_VL_MOE = Value(summary="Qwen3-VL of experts", value=WHOLE_3)
QWEN3_VL_MOE_TEXT = Value(
    summary="the text part of Qwen3-VL of experts",
    value=_of_part(
        qwen3_moe.FACTS,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=128,
        moe_intermediate_size=1408,
        num_experts=60,
        num_experts_per_tok=4,
        norm_topk_prob=True,
        tie_word_embeddings=True,
    ),
)
