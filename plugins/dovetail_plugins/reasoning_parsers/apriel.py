"""Thinking that ends at the start of the final response, in the format of Apriel 1.5 and 1.6.

Source: the chat templates of Apriel-1.5-15b-Thinker and Apriel-1.6-15b-Thinker. The newer one
writes the sentence that begins the thinking itself.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import ImplicitThink, implicit_samples


class Apriel(ImplicitThink):
    """Everything before [BEGIN FINAL RESPONSE] is thinking."""

    info = Info(
        summary="thinking before [BEGIN FINAL RESPONSE] (Apriel)",
        source="https://huggingface.co/ServiceNow-AI/Apriel-1.6-15b-Thinker",
    )
    auto_rank = 1
    markers: ClassVar[Markers] = Markers(
        start="Here are my reasoning steps:", end="[BEGIN FINAL RESPONSE]"
    )
    layout: ClassVar[tuple[str, ...]] = ("[END FINAL RESPONSE]", "\n[END FINAL RESPONSE]")
    samples: ClassVar[tuple[Sample, ...]] = (
        *implicit_samples(markers),
        Sample(
            text="Two.\n[BEGIN FINAL RESPONSE]\nIt is 2.\n[END FINAL RESPONSE]",
            reasoning="Two.",
            content="It is 2.",
        ),
    )
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("[BEGIN FINAL RESPONSE]",)
