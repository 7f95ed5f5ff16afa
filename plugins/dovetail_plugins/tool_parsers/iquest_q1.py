"""Tool calls of IQuest-Q1: GLM's keys and values in a section with its own name.

Source: IQuest's parsers for vLLM and SGLang (https://github.com/IQuestLab/vllm-iquest-q1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.respelled import respelled_samples
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.tool_parsers.glm45 import Glm45

REGION = Markers(start="<iquest_tool_call>", end="</iquest_tool_call>")


def _own(text: str) -> str:
    return text.replace("tool_call>", "iquest_tool_call>")


class IquestQ1(Glm45):
    """name, then <arg_key>k</arg_key> <arg_value>v</arg_value> for each argument."""

    info = Info(
        summary="<iquest_tool_call> with <arg_key> and <arg_value> tags (IQuest-Q1)",
        source="https://github.com/IQuestLab/vllm-iquest-q1",
    )
    markers: ClassVar[tuple[Markers, ...]] = (REGION,)
    calls: ClassVar[XmlCalls] = replace(Glm45.calls, region=REGION)
    samples: ClassVar[tuple[Sample, ...]] = respelled_samples(Glm45.samples, _own)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<iquest_tool_call>", "<arg_key>")
