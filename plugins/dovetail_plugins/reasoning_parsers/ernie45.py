"""Thinking that ends with </think>, an answer between <response> tags: ERNIE 4.5 Thinking.

Source: the chat template and the answers of ERNIE-4.5-21B-A3B-Thinking; they begin within
the block.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import THINK, ImplicitThink, implicit_samples


class Ernie45(ImplicitThink):
    """... </think> <response> ... </response>"""

    info = Info(
        summary="thinking up to </think>, the answer in <response> tags (ERNIE 4.5)",
        source="https://huggingface.co/baidu/ERNIE-4.5-21B-A3B-Thinking",
    )
    auto_rank = 1
    layout: ClassVar[tuple[str, ...]] = (
        "<response>\n",
        "<response>",
        "\n</response>",
        "</response>",
    )
    samples: ClassVar[tuple[Sample, ...]] = (
        *implicit_samples(THINK),
        Sample(
            text="Two.\n</think>\n\n<response>\nIt is 2.\n</response>\n",
            reasoning="Two.",
            content="It is 2.\n",
        ),
    )
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = (
        "<response>",
        ("<global_setting>", "think_mode"),
    )
