"""Tiles that were measured to be faster on a class of devices than those that follow from shapes.

`tiles.json` holds them by device, op and key: `python -m dovetail_kernels tune --write` writes it,
on a GPU. No timing happens while a model runs. Knows no op: keys and numbers belong to the ops.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from dovetail_kernels.gpu.facts import facts_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TABLE = Path(__file__).with_name("tiles.json")
Table = dict[str, dict[str, dict[str, dict[str, int]]]]
"""Device -> op -> key -> what differs from the tile of the shapes."""
Tile = TypeVar("Tile", bound="DataclassInstance")
_tried: dict[tuple[str, str], dict[str, int]] = {}


@cache
def table() -> Table:
    """Return the table that is checked in."""
    found: Table = json.loads(TABLE.read_text(encoding="utf-8"))
    return found


def best(op: str, key: str, tile: Tile, device: torch.device) -> Tile:
    """Return the tile of an op on a device: from the table, else the given one."""
    found = _tried.get((op, key))
    if found is None:
        found = table().get(facts_of(device).name, {}).get(op, {}).get(key)
    return tile if found is None else replace(tile, **found)


@contextmanager
def tried(op: str, key: str, numbers: dict[str, int]) -> Iterator[None]:
    """Take these numbers for the table's inside the with block."""
    _tried[op, key] = numbers
    try:
        yield
    finally:
        del _tried[op, key]


def write_entries(
    device: str, op: str, entries: dict[str, dict[str, int]], path: Path = TABLE
) -> None:
    """Write an op's entries for a device into the table, in the place of older ones."""
    table: Table = json.loads(path.read_text(encoding="utf-8"))
    table[device] = table.get(device, {}) | {op: entries}
    path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
