"""Tool calls of Apriel 1.5 and 1.6: a JSON list between <tool_calls> tags.

Source: the chat templates of Apriel-1.5-15b-Thinker and Apriel-1.6-15b-Thinker.
"""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.data.constraint import Constraint, concat, separated
from dovetail.interfaces.plugin import Info
from dovetail_plugins.syntax.templates import unmentioned
from dovetail_plugins.tool_parsers.jamba import Jamba


class Apriel(Jamba):
    """A list of {"name": ..., "arguments": {...}} in each region."""

    info = Info(
        summary="a JSON list between <tool_calls> tags (Apriel)",
        source="https://huggingface.co/ServiceNow-AI/Apriel-1.6-15b-Thinker",
    )
    auto_rank = 1

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, "<tool_calls>", "[BEGIN FINAL RESPONSE]")

    def calls_constraint(self, call: Constraint, most: int | None) -> Constraint:
        """Return the text of a region of calls."""
        return concat("<tool_calls>[", separated(call, ", ", most), "]</tool_calls>")
