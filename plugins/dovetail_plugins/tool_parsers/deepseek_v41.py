"""Tool calls of DeepSeek-V4.1: the tags of V4, each name after a space, in a section "calls".

Source: the encoding notes of DeepSeek-V4.1-Flash.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.respelled import respelled_calls, respelled_samples
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.syntax.xml_params import XmlCalls
from dovetail_plugins.tool_parsers.deepseek_v32 import DSML, DeepseekV4

SPACED = f"{DSML} "
INVOKE = Markers(start=f"<{SPACED}invoke", end=f"</{SPACED}invoke>", is_body=True)
SECTION = Markers(start=f"<{SPACED}calls>", end=f"</{SPACED}calls>")


def _spaced(text: str) -> str:
    return text.replace(f"{DSML}tool_calls", f"{DSML}calls").replace(DSML, SPACED)


class DeepseekV41(DeepseekV4):
    """<｜DSML｜ invoke name="..."> with <｜DSML｜ parameter name="k" string="true">v</...>."""

    info = Info(
        summary="DSML invoke and parameter tags with spaces (DeepSeek-V4.1)",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V4.1-Flash",
    )
    markers: ClassVar[tuple[Markers, ...]] = (SECTION, INVOKE)
    calls: ClassVar[XmlCalls] = respelled_calls(DeepseekV4.calls, _spaced)
    samples: ClassVar[tuple[Sample, ...]] = respelled_samples(DeepseekV4.samples, _spaced)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, f"<{SPACED}invoke")
