"""Thinking between <think> tags and an answer between <answer> tags, as Hunyuan-A13B writes them.

Source: the chat template and model card of Hunyuan-A13B-Instruct.
"""

from __future__ import annotations

from typing import ClassVar

from dovetail.interfaces.data.text import Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.reasoning_parsers._think import THINK, ThinkTags, tagged_samples


class HunyuanA13b(ThinkTags):
    """<think> ... </think> <answer> ... </answer>"""

    info = Info(
        summary="thinking in <think> tags, the answer in <answer> tags (Hunyuan-A13B)",
        source="https://huggingface.co/tencent/Hunyuan-A13B-Instruct",
    )
    auto_rank = 2
    layout: ClassVar[tuple[str, ...]] = ("<answer>\n", "<answer>", "\n</answer>", "</answer>")
    samples: ClassVar[tuple[Sample, ...]] = (
        *tagged_samples(THINK),
        Sample(
            text="<think>\nTwo.\n</think>\n<answer>\nIt is 2.\n</answer>",
            reasoning="Two.",
            content="It is 2.",
        ),
    )
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = (("<|extra_0|>", "<|startoftext|>"),)
