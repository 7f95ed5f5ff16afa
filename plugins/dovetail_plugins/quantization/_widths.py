"""The widths and groups that kernels have of integers. Imports no torch."""

from __future__ import annotations

STEP = 8
"""Groups of inputs are multiples of it."""
WIDTHS = (2, 3, 4, 5, 6, 8)
"""The bits that kernels have formats of."""
PLANE_STEP = 16
"""Groups of widths other than 4 and 8 are multiples of it."""


def width_of(bits: int, group: int) -> int:
    """Return the storage width of values with this many bits, in groups of this many inputs."""
    if group % PLANE_STEP:
        return 4 if bits <= 4 else 8
    return next(width for width in WIDTHS if width >= bits)
