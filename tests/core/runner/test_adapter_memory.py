"""Memory that adapters are kept in: handed out again once nothing lies in it, never before."""

from __future__ import annotations

import pytest
import torch

from dovetail.runner.lora.memory import MAX_SPARE, AdapterMemory


def taken(memory: AdapterMemory, size: int, *, is_filled: bool = True) -> torch.Tensor:
    return memory.take(size, torch.bfloat16, is_filled=is_filled)


def test_it_is_handed_out_again_once_it_is_dropped() -> None:
    memory = AdapterMemory()
    first = taken(memory, 5000)
    place = first.data_ptr()
    del first
    assert taken(memory, 4000).data_ptr() == place


def test_it_is_kept_while_a_part_of_it_is_in_use() -> None:
    memory = AdapterMemory()
    first = taken(memory, 5000).fill_(3)
    part = first.as_strided((10, 10), (10, 1), 4000)
    place = first.data_ptr()
    del first
    assert taken(memory, 5000).fill_(0).data_ptr() != place
    assert bool((part == 3).all())


@pytest.mark.parametrize("is_spare", [False, True])
def test_what_is_not_filled_is_zero(is_spare: bool) -> None:
    memory = AdapterMemory()
    if is_spare:
        taken(memory, 5000).fill_(3)
    assert not taken(memory, 5000, is_filled=False).any()


@pytest.mark.parametrize("size", [5001, 2000])
def test_a_piece_of_another_size_is_left_alone(size: int) -> None:
    memory = AdapterMemory()
    taken(memory, 5000).fill_(3)
    assert not taken(memory, size).any(), "new memory is zeros"


def test_few_pieces_are_spare() -> None:
    memory = AdapterMemory()
    held = [taken(memory, 5000).fill_(3) for _ in range(MAX_SPARE + 2)]
    del held
    again = [taken(memory, 5000) for _ in range(MAX_SPARE + 2)]
    assert sum(bool(one.any()) for one in again) == MAX_SPARE


def test_nothing_takes_no_piece() -> None:
    memory = AdapterMemory()
    taken(memory, 5000).fill_(3)
    assert not len(taken(memory, 0))
    assert taken(memory, 5000).any()
