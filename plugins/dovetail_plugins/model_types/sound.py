"""Facts of models that hear."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

FACTS = ModelFacts(media=("audio",))

QWEN2_AUDIO = Value(summary="Qwen2-Audio", value=FACTS)
VOXTRAL = Value(summary="Voxtral", value=FACTS)
