"""The hidden states that layers add to: where a product adds to them itself, and how to keep them.

On a GPU a product that is added to its residual writes over it, which saves a kernel a sum. A layer
passes its residual on and does not look back; what reads hidden states of earlier layers keeps a
copy of its own.
"""

from __future__ import annotations

import torch

from dovetail.layers.opaque import is_traced


def adds_in_place(residual: torch.Tensor) -> bool:
    """Whether a product is written over its residual."""
    return residual.is_cuda and not is_traced()


def unchanged(x: torch.Tensor) -> torch.Tensor:
    """Return x as it is now, whatever layers add to it later. Shapes: x [T, E] -> [T, E]"""
    return x.clone() if adds_in_place(x) else x
