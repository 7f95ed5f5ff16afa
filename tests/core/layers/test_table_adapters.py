"""Slots of tables: whole tables, single rows and added tokens against tables put together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dovetail.layers.adapters.tables import TableChange, TableSlots
from dovetail.layers.context import StepAdapters, use_adapters
from dovetail.layers.logits import LogitsHead

V, E = 12, 4


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


OWN = randn(V, E, seed=1)
IDS = torch.tensor([3, V, V + 1])
ROWS = randn(3, E, seed=2)
FIRST, SECOND = randn(V + 2, 2, seed=3), randn(2, E, seed=4)
CHANGES = {
    "rows": TableChange(ids=IDS, rows=ROWS),
    "whole": TableChange(weight=randn(V, E, seed=5), ids=IDS, rows=ROWS),
    "pair": TableChange(first=FIRST[:V], second=SECOND, ids=IDS, rows=ROWS),
    "wide pair": TableChange(first=FIRST, second=SECOND, ids=IDS, rows=ROWS),
}


def table_of(change: TableChange) -> torch.Tensor:
    """Return the table that a change makes of the model's. Shapes: [V + 2, E]"""
    table = torch.zeros(V + 2, E)
    table[:V] = OWN if change.weight is None else change.weight
    table[IDS] = ROWS
    if change.first is not None and change.second is not None:
        table[: len(change.first)] += change.first @ change.second
    return table


def step(*slots: int, num_added: int = 2) -> StepAdapters:
    return StepAdapters(
        slots=torch.tensor(slots, dtype=torch.int32), is_low_rank=False, num_added=num_added
    )


@pytest.mark.parametrize("name", CHANGES)
def test_vectors(name: str) -> None:
    slots, change = TableSlots(V), CHANGES[name]
    slots.put(1, change)
    ids = torch.tensor([3, V + 1, 5, V, 3, 7])
    with use_adapters(step(1, 1, 1, 1, -1, 0)):
        known = slots.known(ids)
        assert int(known.max()) < V
        found = slots.vectors(ids, OWN[known] * 2.0, 2.0)
    table = table_of(change) * 2.0
    torch.testing.assert_close(found[:4], table[ids[:4]])
    torch.testing.assert_close(found[4:], OWN[ids[4:]] * 2.0)


@pytest.mark.parametrize("name", CHANGES)
def test_logits(name: str) -> None:
    slots, change, hidden = TableSlots(V), CHANGES[name], randn(3, E, seed=6)
    slots.put(0, change)
    with use_adapters(step(0, -1, 0, num_added=5)):
        found = slots.logits(hidden, hidden @ OWN.t())
    assert found.shape == (3, V + 5)
    torch.testing.assert_close(found[[0, 2], : V + 2], hidden[[0, 2]] @ table_of(change).t())
    torch.testing.assert_close(found[1, :V], hidden[1] @ OWN.t())
    assert bool((found[1, V:] == -torch.inf).all())
    assert bool((found[[0, 2], V + 2 :] == -torch.inf).all())


def test_steps_without_such_rows_are_as_wide_as_before() -> None:
    slots, hidden = TableSlots(V), randn(2, E)
    slots.put(0, CHANGES["rows"])
    base, ids = hidden @ OWN.t(), torch.tensor([1, 2])
    assert slots.logits(hidden, base) is base and slots.known(ids) is ids
    with use_adapters(step(1, -1, num_added=0)):
        assert slots.logits(hidden, base).shape == base.shape
        assert slots.known(ids) is ids


def test_bent_logits_leave_what_a_row_does_not_have() -> None:
    """A soft cap would make a finite number of the logit of a token that is not there."""
    head: Any = SimpleNamespace(
        tied=SimpleNamespace(logits=lambda hidden: hidden @ OWN.t()),
        group=SimpleNamespace(size=1, rank=0),
        vocab_size=V,
        adapters=TableSlots(V),
        scale=0.5,
        soft_cap=3.0,
    )
    head.adapters.put(0, CHANGES["rows"])
    hidden = randn(2, E)
    with use_adapters(step(0, -1)):
        found = LogitsHead.forward(head, hidden)
    bent = 3.0 * torch.tanh(hidden[:1] @ table_of(CHANGES["rows"]).t() * 0.5 / 3.0)
    torch.testing.assert_close(found[:1], bent)
    assert bool((found[1, V:] == -torch.inf).all()) and bool(found[1, :V].isfinite().all())


def test_a_slot_is_emptied() -> None:
    slots, ids = TableSlots(V), torch.tensor([3])
    slots.put(0, CHANGES["whole"])
    slots.put(0, None)
    with use_adapters(step(0, num_added=0)):
        assert torch.equal(slots.vectors(ids, OWN[ids], 1.0), OWN[ids])
