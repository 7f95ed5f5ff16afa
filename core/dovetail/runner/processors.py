"""The logits processors that a run chose, as objects."""

from __future__ import annotations

from dovetail import registry
from dovetail.interfaces.logits import LogitsProcessor
from dovetail.interfaces.spec import RunSpec


def chosen_processors(run: RunSpec, *, draws: bool) -> dict[str, LogitsProcessor]:
    """Return the chosen processors, without a row; none where nothing is drawn. Raises:
    BrokenPlugin"""
    chosen = run.logits_processors if draws else ()
    return {one.name: registry.make(one, run.model.vocab_size) for one in chosen}
