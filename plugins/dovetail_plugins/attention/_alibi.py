"""ALiBi for backends in torch: a spec's slopes on a device, made once, and the biases of scores.

Source: Press et al., "Train short, test long: attention with linear biases", 2022
"""

from __future__ import annotations

from functools import cache

import torch


@cache
def slopes_on(device: torch.device, slopes: tuple[float, ...]) -> torch.Tensor:
    """Return slopes on the device of a layer's tensors. Shapes: [H] float32"""
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def added_to_scores(slopes: tuple[float, ...], distances: torch.Tensor) -> torch.Tensor:
    """Return the bias added to the scores of keys at these distances from their queries.

    Shapes: distances [...] -> [H, ...] float32
    """
    of_heads = slopes_on(distances.device, slopes)
    return -of_heads.view(-1, *(1,) * distances.dim()) * distances.abs()
