"""Interleaved gate and up: checkpoints whose joined matrix has rows gate, up, gate, up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from dovetail.errors import ConfigError
from dovetail.layers.linear.placement import Cut, Placement, axes_of, is_per_part


def alternating(
    placements: Sequence[Placement], parameter: nn.Parameter, num_rows: int
) -> list[Placement]:
    """Return the placements of a joined tensor whose two parts alternate, `num_rows` in all;
    `placements` are for a tensor with all rows of gate first.

    Raises: ConfigError if rows share packed entries.
    """
    axis = axes_of(parameter)[0]
    if axis is None or is_per_part(parameter):
        return [*placements]
    if any(cut.full != num_rows for one in placements for cut in one.cuts if cut.axis == axis):
        raise ConfigError(
            f"{placements[0].name}: rows of gate and up take turns within packed entries.",
            where="checkpoint",
            fix="use a checkpoint that stores whole rows, such as mxfp4.",
        )
    return [
        replace(one, cuts=tuple(_in_turns(c) if c.axis == axis else c for c in one.cuts))
        for one in placements
    ]


def _in_turns(cut: Cut) -> Cut:
    """Return the cut of a part's consecutive rows as a cut of every other row."""
    part, start = divmod(cut.start, cut.full // 2)
    return replace(cut, start=2 * start + part, step=2)
