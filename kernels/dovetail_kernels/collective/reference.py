"""The definitions of the collectives in torch: what every rank has from what all ranks had."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def all_reduce(xs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return what all ranks have: sums in float32 in the order of the ranks, rounded once."""
    total = xs[0].float()
    for x in xs[1:]:
        total = total + x.float()
    return total.to(xs[0].dtype)


def reduce_scatter(xs: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
    """Return one rank's part of the sum. Shapes: xs R x [R, ...] -> [...]"""
    return all_reduce([x[rank] for x in xs])


def all_gather(xs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return what all ranks have. Shapes: xs R x [...] -> [R, ...]"""
    return torch.stack(list(xs))


def all_to_all(pieces: Sequence[Sequence[torch.Tensor]], rank: int) -> list[torch.Tensor]:
    """Return what one rank has; pieces[q][r] goes from rank q to rank r."""
    return [own[rank] for own in pieces]
