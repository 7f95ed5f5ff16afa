"""Keys of an int8 cache are rotated: products stay, and a channel that stands out costs little."""

from __future__ import annotations

import pytest
import torch

from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.paged_attention.native import Step
from dovetail_kernels.paged_attention.rotation import block_of, rotated_keys, rotated_queries

TOKENS, HEADS, KV_HEADS, BLOCK_TOKENS = 40, 4, 2, 16
SCALE_BYTES = 4
PLAIN_ERROR, ROTATED_ERROR = 0.012, 0.009
"""Root mean square of an output's error over the outputs', with a key channel 30 times larger."""


def vectors(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(size)
    q = torch.randn(TOKENS, HEADS, size, generator=random)
    k = torch.randn(TOKENS, KV_HEADS, size, generator=random) * 0.3
    v = torch.randn(TOKENS, KV_HEADS, size, generator=random)
    k[..., 7] *= 30
    q[..., 7] *= 0.05
    return q, k, v


def attended(size: int, dtype: torch.dtype, *, rotates: bool) -> torch.Tensor:
    q, k, v = vectors(size)
    width = size + (SCALE_BYTES if dtype == torch.int8 else 0)
    cache = torch.zeros((4, KV_HEADS, 2, BLOCK_TOKENS, width), dtype=dtype)
    step = Step(
        block_table=torch.tensor([[0, 1, 2]], dtype=torch.int32),
        query_start=torch.tensor([0, TOKENS], dtype=torch.int32),
        seq_lens=torch.tensor([TOKENS], dtype=torch.int32),
        slots=torch.arange(TOKENS),
        block_tokens=BLOCK_TOKENS,
    )
    step.set_rules(
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_size=size,
        scale=size**-0.5,
        rotates=rotates,
    )
    return step(q, k, v, cache)


@pytest.mark.parametrize("size", [16, 64, 80, 96, 128, 256])
def test_products_of_rotated_vectors_are_the_same(size: int) -> None:
    q, k, _ = vectors(size)
    found = torch.einsum("qhd,khd->hqk", rotated_queries(q[:, :2]), rotated_keys(k))
    wanted = torch.einsum("qhd,khd->hqk", q[:, :2], k)
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)
    peaks, plain = (
        float((x.abs().amax(-1) / x.square().mean(-1).sqrt()).mean()) for x in (rotated_keys(k), k)
    )
    assert peaks < plain or block_of(size) < 16


@pytest.mark.skipif(library() is None, reason=missing_reason() or "")
@pytest.mark.parametrize("size", [64, 80, 128, 256])
def test_rotated_keys_are_held_better_in_int8(size: int) -> None:
    wanted = attended(size, torch.float32, rotates=False)
    assert torch.allclose(attended(size, torch.float32, rotates=True), wanted, atol=1e-4)

    def error(*, rotates: bool) -> float:
        found = attended(size, torch.int8, rotates=rotates)
        return float((found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())

    assert error(rotates=False) > PLAIN_ERROR
    assert error(rotates=True) < ROTATED_ERROR
