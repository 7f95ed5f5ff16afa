"""Where rows of joined tensors lie: for weights, which ranks divide, as for adapters, which are
read whole."""

from __future__ import annotations

import pytest
import torch

from dovetail.layers.linear.joints import held_rows, outputs_in
from dovetail.layers.linear.placement import Part

JOINT = {"q": 6, "v": 2, "k": 2}


def parts(rank: int, size: int) -> tuple[Part, ...]:
    full = {"q": 24, "k": 8, "v": 8, "gate": 24}
    return tuple(
        Part(name=name, full=rows, local=rows // size, start=rank * rows // size)
        for name, rows in full.items()
    )


def test_rows_take_turns_in_the_order_of_the_joint() -> None:
    found = outputs_in(parts(0, 1), JOINT)
    assert found["q"].tolist()[:8] == [0, 1, 2, 3, 4, 5, 10, 11]
    assert (found["v"].tolist()[:3], found["k"].tolist()[:3]) == ([6, 7, 16], [8, 9, 18])
    assert sorted(torch.cat([*found.values()]).tolist()) == list(range(40))
    assert "gate" not in found, "the joint holds nothing of it"


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_hold_the_rows_of_their_outputs(size: int) -> None:
    whole = outputs_in(parts(0, 1), JOINT)
    for rank in range(size):
        own, offset = parts(rank, size), 0
        held = {
            row.offset + i: row.start + i for row in held_rows(own, JOINT) for i in range(row.size)
        }
        for part in own:
            if part.name in JOINT:
                wanted = whole[part.name][part.start : part.start + part.local].tolist()
                assert [held.pop(offset + i) for i in range(part.local)] == wanted
            offset += part.local
        assert not held
