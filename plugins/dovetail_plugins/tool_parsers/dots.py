"""Tool calls of the dots models: invoke tags with a tag for each parameter, in one section.

Source: vLLM's reference of its dots tool parser, which describes the format.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.tool_parsers.minimax_m2 import MinimaxM2, samples_of

SECTION = Markers(start="<dots_function_call>", end="</dots_function_call>")


class Dots(MinimaxM2):
    """<invoke name="..."> with <parameter name="k">v</parameter> for each argument."""

    info = Info(
        summary="<invoke> and <parameter> tags in <dots_function_call> (dots)",
        source="https://docs.vllm.ai/en/latest/api/vllm/tool_parsers/dots_tool_parser/",
    )
    markers: ClassVar[tuple[Markers, ...]] = (SECTION,)
    samples: ClassVar[tuple[Sample, ...]] = samples_of(SECTION)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, SECTION.start)
