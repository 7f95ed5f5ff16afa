"""Dense attention: each of an encoder's items sees all of itself, with nothing cached.

Items are concatenated; their lengths are in a thread-local slot while an encoder runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.attention import AttentionSpec


class _Slot(threading.local):
    lens: Sequence[int] = ()


_slot = _Slot()


@contextmanager
def use_items(lens: Sequence[int]) -> Iterator[None]:
    """Let layers attend within items of these lengths inside a with block."""
    previous, _slot.lens = _slot.lens, lens
    try:
        yield
    finally:
        _slot.lens = previous


class DenseAttention(nn.Module):
    """Attention of this rank's heads among the rows of each item; knows no window and no soft
    cap."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attended values; `bias` is that of `AttentionBackend.forward_biased`.

        Shapes: q [T, H*D], k and v [T, K*D], bias [H, 2 M - 1] -> [T, H*D]
        """
        assert sinks is None, "no encoder has sinks"
        lens = list(_slot.lens)
        assert sum(lens) == len(q), "an encoder's layers ran outside use_items"
        items = zip(q.split(lens), k.split(lens), v.split(lens), strict=True)
        return torch.cat([self._item(*item, bias=bias) for item in items])

    def _item(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Attend within one item. Shapes: as forward's"""
        size = self.spec.head_size
        q, k, v = (x.unflatten(-1, (-1, size)).transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        mask = None if bias is None else _mask(bias, q.shape[2]).to(q.dtype)
        is_grouped = self.spec.num_heads != self.spec.num_kv_heads
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=self.spec.scale, enable_gqa=is_grouped
        )
        return out.squeeze(0).transpose(0, 1).flatten(-2)


def _mask(bias: torch.Tensor, length: int) -> torch.Tensor:
    """Return the score bias of an item. Shapes: bias [H, 2 M - 1] -> [1, H, S, S]"""
    place = torch.arange(length, device=bias.device)
    return bias[:, bias.shape[1] // 2 + place - place.unsqueeze(1)].unsqueeze(0)
