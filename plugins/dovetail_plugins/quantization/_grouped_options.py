"""The options of methods whose weights are integers in groups. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

STEP = {"int8": 16, "float": 8}
"""Groups of inputs are multiples of it, by what activations become."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedOptions:
    """Options of methods whose weights are 4-bit groups."""

    activations: str = field(
        default="int8",
        metadata={
            "choices": tuple(STEP),
            "help": "int8: activations become 8-bit per token, which is faster; float: not",
        },
    )
