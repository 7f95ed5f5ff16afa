"""The options of methods whose weights are integers in groups. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.layers.checkpoint_method import RoundingOptions

STEP = {"int8": 16, "float": 8}
"""Groups of inputs are multiples of it, by what activations become."""
WIDTHS = (2, 3, 4, 5, 6, 8)
"""The bits that kernels have formats of."""
PLANE_STEP = 16
"""Groups of widths other than 4 and 8 are multiples of it."""


def width_of(bits: int, group: int) -> int:
    """Return the width that values of so many bits are kept in, in groups of so many inputs."""
    if group % PLANE_STEP:
        return 4 if bits <= 4 else 8
    return next(width for width in WIDTHS if width >= bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedOptions(RoundingOptions):
    """Options of methods whose weights are 4-bit groups."""

    activations: str = field(
        default="int8",
        metadata={
            "choices": tuple(STEP),
            "help": "int8: activations become 8-bit per token, which is faster; float: not",
        },
    )
