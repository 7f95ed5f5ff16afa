"""Tool calls of GigaChat 3.5: the tags of DeepSeek-V4 with another token, GCML.

Source: SGLang's detector of GigaChat 3.5, which describes the format.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from dovetail.interfaces.data.text import Layout, Markers, Sample, Tag
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.respelled import respelled_calls, respelled_samples
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.tool_parsers.deepseek_v32 import DSML, DeepseekV4
from dovetail_plugins.tool_parsers.gigachat3 import OVER

GCML = "｜GCML｜"


def _own(text: str) -> str:
    return text.replace(DSML, GCML)


class GigaChat35(DeepseekV4):
    """<｜GCML｜invoke name="..."> with <｜GCML｜parameter name="k" string="true">v</...>."""

    info = Info(
        summary="GCML invoke and parameter tags (GigaChat 3.5)",
        source="https://huggingface.co/ai-sage/GigaChat3.5-432B-A28B",
    )
    markers: ClassVar[tuple[Markers, ...]] = tuple(
        replace(region, start=_own(region.start), end=_own(region.end))
        for region in DeepseekV4.markers
    )
    layout: ClassVar[Layout] = (
        OVER,
        *(replace(t, start=_own(t.start)) for t in DeepseekV4.layout if isinstance(t, Tag)),
    )
    inner: ClassVar[tuple[str, ...]] = (GCML,)
    calls: ClassVar[XmlCalls] = respelled_calls(DeepseekV4.calls, _own)
    samples: ClassVar[tuple[Sample, ...]] = respelled_samples(DeepseekV4.samples, _own)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, GCML)
