"""DoRA beside layers of every quantized format: what PEFT means by it of the matrix that is kept.

Checkpoints of tests/data/quantized; a layer's matrix is what it makes of unit vectors.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dovetail.interfaces.data.adapter_spec import AdapterSpec
from dovetail.layers.activation import gated
from dovetail.layers.adapters.linear import LinearSlots, SlotWeights
from dovetail.layers.context import StepAdapters, use_adapters
from dovetail.layers.linear import GatedLinear, Linear, RowParallelLinear
from dovetail_testing.harness import load_model

DATA = Path(__file__).resolve().parents[2] / "data" / "quantized"
NAMES = sorted(folder.name for folder in DATA.iterdir() if (folder / "config.json").is_file())
RANK, ROWS = 4, 6
BOUND = 2e-3
"""Of the largest output; both sides multiply float activations by the same matrix."""


def dora(layer: Linear) -> SlotWeights:
    generator = torch.Generator().manual_seed(3)
    parts, size = len(layer.parts), layer.spec.in_size
    return SlotWeights(
        down=torch.randn(parts, RANK, size, generator=generator) * 0.1,
        up=torch.randn(RANK, layer.spec.out_size, generator=generator) * 0.1,
        magnitude=torch.rand(layer.spec.out_size, generator=generator) + 0.5,
    )


def meant(layer: Linear, change: SlotWeights, x: torch.Tensor) -> torch.Tensor:
    """Return what DoRA's formula says, with the whole matrix in hand. Shapes: [T, I] -> [T, O]"""
    assert change.down is not None and change.up is not None and change.magnitude is not None
    matrix = layer.method.halves(layer, torch.eye(layer.spec.in_size)).float().t()
    ups = change.up.split(layer.spec.out_sizes, dim=1)
    matrix = matrix + torch.cat([u.t() @ d for d, u in zip(change.down, ups, strict=True)])
    scaled = matrix * (change.magnitude / matrix.norm(dim=1)).unsqueeze(1)
    out = x @ scaled.t()
    if layer.bias is not None:
        out = out + layer.bias
    return gated(layer.gate.function, out) if isinstance(layer, GatedLinear) else out


@pytest.mark.parametrize("name", NAMES)
def test_dora(name: str) -> None:
    module = load_model(DATA / name)
    spec = AdapterSpec(max_slots=2, max_rank=8, dtype="float32")
    kinds: set[type] = set()
    for layer in module.modules():
        if not isinstance(layer, Linear) or type(layer) in kinds:
            continue
        kinds.add(type(layer))
        layer.adapters = LinearSlots(layer, spec)
        change = dora(layer)
        layer.adapters.put_change(layer, 1, change)
        x = torch.randn(ROWS, layer.spec.in_size, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            without = layer(x)
            slots = torch.tensor([1, -1] * (ROWS // 2), dtype=torch.int32)
            with use_adapters(StepAdapters(slots=slots, is_low_rank=False)):
                ours = layer(x)
            theirs = meant(layer, change, x)
        largest = float(theirs.abs().max())
        assert (ours[0::2] - theirs[0::2]).abs().max() <= BOUND * largest
        assert (ours[1::2] - without[1::2]).abs().max() <= BOUND * float(without.abs().max())
        assert (theirs - without).abs().max() > 0.1 * largest, "the adapter changes too little"
    assert RowParallelLinear in kinds
