"""head_products: each head's numbers times a matrix of its own.

out[t, h] = x[t, h, : I] W[h], and behind it x[t, h, I :] as it is. That is what latent attention
does to queries (their turned part stays) and to what they attend to.

Shapes: x [T, H, I + S], weight [H, I, O] -> [T, H, O + S]
Source: DeepSeek-AI, DeepSeek-V2, 2024, arXiv 2405.04434, section 2.1.2
"""

from __future__ import annotations

import torch

from dovetail_kernels.head_products.reference import reference


class HeadMatrices:
    """The matrices of all heads. Shapes: weight [H, I, O]"""

    def __init__(self, weight: torch.Tensor) -> None:
        self.tensor = weight.contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, H, I + S] -> [T, H, O + S]"""
        return reference(x, self.tensor)
