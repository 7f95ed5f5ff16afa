"""ExpertPlacement: which rank holds which experts, the value of an `expert_placement` plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

ExpertPlacement = Callable[[int, int], Sequence[Sequence[int]]]
"""Takes the number of experts and of ranks, which divides it. Returns each rank's experts: every
expert once, and as many on each rank; always the same ones."""
