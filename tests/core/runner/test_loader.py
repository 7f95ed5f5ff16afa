"""What loading gives back to the system while layers repack."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dovetail.layers.linear.placement import Placement, WeightHolder
from dovetail.runner.load import loader


class Layer(WeightHolder):
    """A layer of 400 bytes that drops its parameter when it is finished."""

    def __init__(self) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = nn.Parameter(torch.zeros(100))

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Take no tensor."""
        return None

    def pieces(self, leaf: str) -> set[str]:
        """Have none."""
        return set()

    def finish(self) -> None:
        """Drop the parameter."""
        self.weight = None


def test_memory_is_given_back_once_layers_have_freed_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimmed: list[int] = []
    layers = [Layer() for _ in range(7)]
    monkeypatch.setattr(loader, "GIVE_BACK_BYTES", 1000)
    monkeypatch.setattr(
        loader, "trim_heap", lambda: trimmed.append(sum(one.weight is None for one in layers))
    )
    finish = loader.GivingBack(loader.own_finish)
    for layer in layers:
        finish(layer)
    assert trimmed == [3, 6]
    assert all(layer.weight is None for layer in layers)
