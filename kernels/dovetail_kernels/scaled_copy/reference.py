"""The definition of scaled_copy in torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def reference(
    sources: Iterable[torch.Tensor], targets: Iterable[torch.Tensor], scales: Sequence[float]
) -> torch.Tensor:
    """Copy matrices; return the number of the first that is not finite, -1 for none.

    Shapes: C sources and targets [A, B], scales [C] -> [] int64. Mutates: targets
    """
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        target.copy_(source.float() * scales[number])
        if not bool(torch.isfinite(target).all()):
            return torch.tensor(number)
    return torch.tensor(-1)
