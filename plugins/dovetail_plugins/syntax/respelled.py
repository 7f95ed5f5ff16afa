"""A family's syntax with other tags: its samples and its calls, spelled anew.

For a parser that derives from another family's and changes the text of its tags alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dovetail.interfaces.data.text import Sample
from dovetail_plugins.syntax.xml_params import XmlCalls

Spelling = Callable[[str], str]
"""A text of the first family -> the same text in the other's tags."""


def respelled_samples(samples: Sequence[Sample], spell: Spelling) -> tuple[Sample, ...]:
    """Return samples with the texts, the contents and the arguments spelled anew."""
    return tuple(
        replace(
            sample,
            text=spell(sample.text),
            content=spell(sample.content),
            calls=tuple(replace(c, arguments=spell(c.arguments)) for c in sample.calls),
        )
        for sample in samples
    )


def respelled_calls(calls: XmlCalls, spell: Spelling) -> XmlCalls:
    """Return calls with the tags of a call and of its parameters spelled anew."""
    return replace(
        calls,
        head=spell(calls.head),
        key=spell(calls.key),
        value_end=spell(calls.value_end),
        tail=spell(calls.tail),
    )
