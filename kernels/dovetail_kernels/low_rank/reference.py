"""The definition of low_rank in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def reference(
    x: torch.Tensor,
    slots: torch.Tensor,
    down: torch.Tensor,
    up: torch.Tensor,
    ranks: torch.Tensor,
    parts: Sequence[int],
    base: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return base + up^T (down x) by each row's slot, in x's dtype.

    Shapes: x [T, I], slots [T], down [S, P, R, I], up [S, R, O], ranks [S], base [O] or [T, O] ->
    [T, O]
    """
    out = torch.zeros((x.shape[0], up.shape[2]), dtype=torch.float32, device=x.device)
    known = ranks.tolist()
    for slot in sorted(set(slots.tolist())):
        if slot < 0 or not known[slot]:
            continue
        rows, rank = slots == slot, known[slot]
        thin = torch.einsum("ti,pri->ptr", x[rows].float(), down[slot, :, :rank].float())
        wide = up[slot, :rank].float().split(list(parts), dim=1)
        out[rows] = torch.cat([h @ own for h, own in zip(thin, wide, strict=True)], dim=1)
    if base is not None:
        out += base.float()
    return out.to(x.dtype)
