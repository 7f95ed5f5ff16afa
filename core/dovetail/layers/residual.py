"""The residual stream: products that are added to it in place, and how to save a copy.

On a GPU, a product with a residual overwrites the residual, which saves a kernel per sum. A layer
passes its residual on and does not read it again; code that reads hidden states of earlier layers
makes a copy.
"""

from __future__ import annotations

import torch

from dovetail.layers.opaque import is_traced


def adds_in_place(residual: torch.Tensor) -> bool:
    """Return whether a product overwrites its residual."""
    return residual.is_cuda and not is_traced()


def unchanged(x: torch.Tensor) -> torch.Tensor:
    """Return x in its current state, whatever is added to it later. Shapes: x [T, E] -> [T, E]"""
    return x.clone() if adds_in_place(x) else x
