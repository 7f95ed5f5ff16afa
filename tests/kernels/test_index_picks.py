"""The native kernel of an indexer's picks: a row's are its own, and equal scores are ordered."""

from __future__ import annotations

import pytest
import torch

from dovetail_kernels.cpu.library import Library, library
from dovetail_kernels.index_picks.native import index_picks
from dovetail_kernels.index_picks.reference import reference
from dovetail_kernels.random import normal

if (found_library := library()) is None:
    pytest.skip("no native library", allow_module_level=True)
LIBRARY: Library = found_library

CPU = torch.device("cpu")
HEADS, SIZE, BLOCK_TOKENS, TOKENS, PICKED = 20, 24, 8, 2400, 100
BLOCKS = TOKENS // BLOCK_TOKENS
Q = normal((TOKENS, HEADS, SIZE), torch.float32, CPU, seed=1)
WEIGHTS = normal((TOKENS, HEADS), torch.float32, CPU, seed=2)
KEYS = normal((BLOCKS, BLOCK_TOKENS, SIZE), torch.float32, CPU, seed=3)


def picks(
    tokens: slice | list[int],
    counts: list[int],
    lengths: list[int],
    keys: torch.Tensor = KEYS,
    picked: int = PICKED,
) -> torch.Tensor:
    """Return what rows pick that all have the same blocks."""
    return index_picks(
        Q[tokens],
        WEIGHTS[tokens],
        keys,
        torch.arange(BLOCKS, dtype=torch.int32).repeat(len(counts), 1),
        torch.tensor([0, *counts]).cumsum(0).int(),
        torch.tensor(lengths, dtype=torch.int32),
        picked,
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_row_picks_is_its_own(threads: int, dtype: torch.dtype) -> None:
    """Alone, in a batch, whole, in chunks, and however threads share it: of scores that are near
    each other, as those of random numbers are, the same bits decide."""
    keys, before = KEYS.to(dtype), LIBRARY.num_threads()
    whole = picks(slice(None), [TOKENS], [TOKENS], keys)
    LIBRARY.set_threads(threads)
    try:
        last = picks(slice(TOKENS - 1, None), [1], [TOKENS], keys)
        batch = picks([5, 2399, 1300], [1, 1, 1], [6, 2400, 1301], keys)
        chunk = picks(slice(1250, 1290), [40], [1290], keys)
    finally:
        LIBRARY.set_threads(before)
    assert torch.equal(last[0], whole[-1])
    assert torch.equal(batch, whole[[5, 2399, 1300]])
    assert torch.equal(chunk, whole[1250:1290])


def test_of_equal_scores_the_earliest_are_picked() -> None:
    """All keys equal: the first ones; every second one zero, whose scores are in the middle."""
    same = KEYS[:1, :1].expand_as(KEYS).contiguous()
    found = picks(slice(TOKENS - 1, None), [1], [TOKENS], same)
    assert found.tolist() == [list(range(PICKED))]
    same[:, ::2] = 0.0
    found = picks(slice(TOKENS - 5, None), [5], [TOKENS], same)
    assert torch.equal(
        found,
        reference(
            Q[-5:],
            WEIGHTS[-5:],
            same,
            torch.arange(BLOCKS, dtype=torch.int32).unsqueeze(0),
            torch.tensor([0, 5], dtype=torch.int32),
            torch.tensor([TOKENS], dtype=torch.int32),
            PICKED,
        ),
    )


def test_every_query_picks_as_many_as_there_are_even_of_no_numbers() -> None:
    """Keys that are NaN or infinite spoil what is picked, and nothing else."""
    broken = KEYS.clone()
    broken[3], broken[7], broken[9] = torch.nan, torch.inf, -torch.inf
    found = picks(slice(0, 200), [200], [200], broken)
    for position, row in enumerate(found):
        own = row[: min(position + 1, PICKED)]
        assert bool((own >= 0).all() and (own <= position).all())
        assert bool((own.diff() > 0).all()) and bool((row[len(own) :] == -1).all())
