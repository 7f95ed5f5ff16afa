"""Facts of Qwen2-Audio."""

from __future__ import annotations

from dovetail.interfaces.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

QWEN2_AUDIO = Value(summary="Qwen2-Audio", value=ModelFacts(media=("audio",)))
