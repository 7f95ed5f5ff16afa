"""The native kernel of latents: what it writes, and that a row's bits are its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail_kernels.cpu.library import library
from dovetail_kernels.latent_attention.native import Step
from dovetail_kernels.random import normal

if (LIBRARY := library()) is None:
    pytest.skip("no native library", allow_module_level=True)

CPU = torch.device("cpu")
HEADS, SIZE, WIDTH, BLOCK_TOKENS, TOKENS = 5, 40, 52, 8, 600
BLOCKS = TOKENS // BLOCK_TOKENS
Q = normal((TOKENS, HEADS, WIDTH), torch.float32, CPU, seed=1)
LATENTS = normal((TOKENS, WIDTH), torch.float32, CPU, seed=2)


def step(counts: list[int], lengths: list[int], slots: torch.Tensor | None = None) -> Step:
    """Return a step of rows that all have the same blocks, 0 .. 74."""
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    table = torch.arange(BLOCKS, dtype=torch.int32).repeat(len(counts), 1)
    return Step(
        block_table=table,
        query_start=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        slots=slots,
        block_tokens=BLOCK_TOKENS,
    )


def run(q: torch.Tensor, counts: list[int], lengths: list[int], cache: torch.Tensor) -> Any:
    return step(counts, lengths)(q, None, cache, 0.2, SIZE, may_round=True)


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def cache(request: pytest.FixtureRequest) -> torch.Tensor:
    return LATENTS.view(BLOCKS, BLOCK_TOKENS, WIDTH).to(request.param)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_s_bits_are_its_own(cache: torch.Tensor, threads: int) -> None:
    """Alone, in a batch, whole, in chunks, and however threads share it."""
    before = LIBRARY.num_threads()
    (whole,) = [run(Q, [TOKENS], [TOKENS], cache)]
    LIBRARY.set_threads(threads)
    try:
        last = run(Q[-1:], [1], [TOKENS], cache)
        batch = run(Q[[5, 599, 300]], [1, 1, 1], [6, 600, 301], cache)
        chunk = run(Q[250:290], [40], [290], cache)
    finally:
        LIBRARY.set_threads(before)
    assert torch.equal(last[0], whole[-1])
    assert torch.equal(batch, whole[[5, 599, 300]])
    assert torch.equal(chunk, whole[250:290])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_writes_latents_into_their_slots_alone(dtype: torch.dtype) -> None:
    """Rounded to the cache's type, in blocks that lie apart."""
    memory = torch.full((4, BLOCK_TOKENS * WIDTH + 6), 7.0).to(dtype)
    shape, strides = (4, BLOCK_TOKENS, WIDTH), (memory.stride(0), WIDTH, 1)
    cache = memory.as_strided(shape, strides)
    slots = torch.tensor([9, 0, 31])
    made = step([3], [3], slots)
    made(Q[:3], LATENTS[:3], cache, 0.2, SIZE)
    wanted = torch.full(shape, 7.0).to(dtype)
    wanted.view(-1, WIDTH)[slots] = LATENTS[:3].to(dtype)
    assert torch.equal(cache, wanted)
    assert bool((memory[:, BLOCK_TOKENS * WIDTH :] == 7).all())
