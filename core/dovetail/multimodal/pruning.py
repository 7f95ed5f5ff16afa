"""Efficient video sampling: drops cells of a video that repeat the previous frames.

A cell is the area of one vector: merged patches of one step in time (two frames). The first step is
complete. Of the others, the cells that differ most from the same place one step earlier remain, at
least one per step, so that every time stamp has one. The encoder's input is compared, so that a
prompt's length and positions are known before anything is encoded.
Source: Bagrov et al., Efficient Video Sampling, 2025, https://arxiv.org/abs/2510.14624
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def kept_cells(
    patches: torch.Tensor, shape: tuple[int, ...], pruning_rate: float
) -> tuple[int, ...]:
    """Return the indices of the remaining cells, in order; () for all of them.

    Shapes: patches [cells * patches of a cell, numbers], a cell's patches together; shape: time,
    height, width in cells.
    """
    import torch

    times, height, width = shape
    area = height * width
    count = max(area + times - 1, int(times * area * (1 - pruning_rate)))
    if count >= times * area:
        return ()
    cells = patches.reshape(times, area, -1)
    changes = (cells[1:] - cells[:-1]).abs().mean(-1)
    changes[torch.arange(times - 1), changes.argmax(-1)] = float("inf")
    order = changes.flatten().argsort(descending=True, stable=True)[: count - area]
    return (*range(area), *sorted((order + area).tolist()))


def pruned_text(text: str, word: str, cells: Sequence[int], area: int) -> str:
    """Return a video's text with as many placeholders as remaining cells: in one run, or in one run
    per step in time. `area` is the number of cells of a step."""
    stretches = re.findall(f"(?:{re.escape(word)})+", text)
    counts = [len(cells)]
    if len(stretches) > 1:
        counts = [sum(cell // area == step for cell in cells) for step in range(len(stretches))]
    waiting = iter(counts)
    return re.sub(f"(?:{re.escape(word)})+", lambda _: word * next(waiting), text)
