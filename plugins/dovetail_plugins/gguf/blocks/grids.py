"""The points that IQ types choose from: part of the format, not computable.

Source: the iq*_grid tables of https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
`grids.json` holds every point's values as indexes into `VALUES`, in minimal bits, base64.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path

import torch

VALUES: dict[str, tuple[int, ...]] = {
    "IQ1_S": (-1, 0, 1),
    "IQ2_XXS": (8, 25, 43),
    "IQ2_XS": (8, 25, 43),
    "IQ2_S": (8, 25, 43),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
"""The values that occur in a grid."""
SIZES = {"IQ3_XXS": 4, "IQ3_S": 4}
"""Values of a point, if they are not eight."""
FILE = "grids.json"


@cache
def grid(type_name: str) -> torch.Tensor:
    """Return a type's points. Shapes: [points, 8 or 4] int8"""
    stored = json.loads(Path(__file__).with_name(FILE).read_text(encoding="ascii"))
    raw = torch.tensor(list(base64.b64decode(stored[type_name])), dtype=torch.uint8)
    values = VALUES[type_name]
    bits = 2 if len(values) <= 4 else 4
    places = raw.unsqueeze(1) >> torch.arange(0, 8, bits, dtype=torch.uint8) & ((1 << bits) - 1)
    table = torch.tensor(values, dtype=torch.int8)
    return table[places.flatten().long()].view(-1, SIZES.get(type_name, 8))


@cache
def sign_bytes() -> torch.Tensor:
    """Return seven sign bits with an eighth that makes their number even. Shapes: [128] uint8"""
    index = torch.arange(128)
    ones = (index.unsqueeze(1) >> torch.arange(7) & 1).sum(dim=1)
    return (index | (ones % 2) << 7).to(torch.uint8)
