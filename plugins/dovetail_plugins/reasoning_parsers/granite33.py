"""Thinking between <think> tags and an answer between <response> tags, as Granite 3.3 writes them.

Source: the chat template of granite-3.3-8b-instruct.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import THINK, ThinkTags, tagged_samples


class Granite33(ThinkTags):
    """<think> ... </think> <response> ... </response>"""

    info = Info(
        summary="thinking in <think> tags, the answer in <response> tags (Granite 3.3)",
        source="https://huggingface.co/ibm-granite/granite-3.3-8b-instruct",
    )
    auto_rank = 2
    layout: ClassVar[tuple[str, ...]] = ("<response>", "</response>")
    samples: ClassVar[tuple[Sample, ...]] = (
        *tagged_samples(THINK),
        Sample(
            text="<think>Two.</think>\n<response>It is 2.</response>",
            reasoning="Two.",
            content="It is 2.",
        ),
    )
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ("<response>", "<|start_of_role|>")
