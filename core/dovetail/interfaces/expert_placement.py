"""ExpertPlacement: which rank holds which experts; the value of an `expert_placement` plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

ExpertPlacement = Callable[[int, int], Sequence[Sequence[int]]]
"""Takes the number of experts and the number of ranks, a divisor of it. Returns each rank's
experts: every expert once, equally many per rank, deterministically."""
