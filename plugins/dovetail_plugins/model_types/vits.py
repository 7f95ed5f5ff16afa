"""Facts of VITS: an encoder of characters or phonemes, and layers that make sound of its states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.data.pooling_spec import SpeechSpec
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(
    positions="relative",
    is_encoder=True,
    speech="dovetail_plugins.model_types.vits:speech_of",
    defaults={
        "vocab_size": 38,
        "hidden_size": 192,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "num_speakers": 1,
        "sampling_rate": 16_000,
    },
)
VITS = Value(summary="VITS, MMS-TTS", value=FACTS)


def speech_of(config: Mapping[str, Any]) -> SpeechSpec:
    """Return the rate and the voices. They have no names in config.json, so numbers name them; one
    that is alone is the default."""
    count = int(config["num_speakers"])
    voices = tuple(map(str, range(count))) if count > 1 else ("default",)
    return SpeechSpec(rate_hz=int(config["sampling_rate"]), voices=voices)
