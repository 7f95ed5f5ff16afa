"""ThinkTags: shared base of reasoning parsers with one pair of tags."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from dovetail.interfaces.data.text import Markers, Sample
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail_plugins.syntax.templates import unmentioned

THINK = Markers(start="<think>", end="</think>")
UNTIL_CALL = replace(THINK, ends_with_call=True)
"""Of families whose models call tools without closing their thinking first."""


def tagged_samples(markers: Markers) -> tuple[Sample, ...]:
    """Return samples of thinking between tags, of none, and of a tag in other text."""
    start, end = markers.start, markers.end
    return (
        Sample(text=f"{start}\nTwo.\n{end}\n\nIt is 2.", reasoning="Two.", content="It is 2."),
        Sample(text="It is 2.", content="It is 2."),
        Sample(text=f"A {start} tag", content=f"A {start} tag"),
    )


def implicit_samples(markers: Markers) -> tuple[Sample, ...]:
    """Return samples of thinking with and without its opening tag."""
    start, end = markers.start, markers.end
    return (
        Sample(text=f"Two.\n{end}\n\nIt is 2.", reasoning="Two.", content="It is 2."),
        Sample(text=f"{start}\nTwo.\n{end}\nIt is 2.", reasoning="Two.", content="It is 2."),
    )


class ThinkTags(ReasoningParser):
    """Thinking between tags. The family's chat templates have all of `mentions`, of a tuple one."""

    markers: ClassVar[Markers] = THINK
    samples: ClassVar[tuple[Sample, ...]] = tagged_samples(THINK)
    mentions: ClassVar[tuple[str | tuple[str, ...], ...]] = ()

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax."""
        return unmentioned(query, (cls.markers.end, cls.markers.start), *cls.mentions)


class ImplicitThink(ThinkTags):
    """Everything before the closing tag is thinking, with or without the opening one."""

    capabilities = frozenset({"implicit_start"})
    samples: ClassVar[tuple[Sample, ...]] = implicit_samples(THINK)

    def starts_inside(self, prompt: str) -> bool:
        """Return whether thinking is open: always, unless the prompt closed it at its end."""
        return not prompt.rstrip().endswith(self.markers.end)
