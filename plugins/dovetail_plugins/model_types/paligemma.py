"""Facts of PaliGemma: a prompt with images is attended to in both directions."""

from __future__ import annotations

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

PALIGEMMA = Value(
    summary="PaliGemma, whose text model has its own settings",
    value=ModelFacts(
        overflows_in_float16=True, media=("image",), media_see_all=True, prompts_see_all=True
    ),
)
