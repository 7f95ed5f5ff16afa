"""Checkpoint names of a parameter: the weight map undone."""

from __future__ import annotations

import pytest

from dovetail.interfaces.model import WeightMap
from dovetail.layers.weights import names_of

FUSED = {"q_proj": ("qkv_proj", "q"), "k_proj": ("qkv_proj", "k")}
MAPS = {
    "plain": (WeightMap(), {"a.o_proj.weight": None}),
    "fused": (
        WeightMap(fused=FUSED),
        {"a.qkv_proj.weight": None, "a.q_proj.weight": "q", "a.k_proj.weight": "k"},
    ),
    "prefix": (WeightMap(prefixes=(("base.", "a."),)), {"base.o_proj.weight": None}),
    "rename": (WeightMap(renames=((".dense.", ".o_proj."),)), {"a.dense.weight": None}),
    "part": (
        WeightMap(parts={"a.": WeightMap(prefixes=(("old_", ""),), fused=FUSED)}),
        {"a.old_q_proj.weight": "q", "a.old_k_proj.weight": "k"},
    ),
    "ignored": (WeightMap(ignored=("a.",)), {}),
    "tied": (WeightMap(tied={"a.o_proj.weight": "b.weight"}), {}),
}


@pytest.mark.parametrize("name", MAPS)
def test_names_lead_to_the_parameter(name: str) -> None:
    weight_map, wanted = MAPS[name]
    path = "a.qkv_proj.weight" if weight_map.fused or weight_map.parts else "a.o_proj.weight"
    found = {name: target.part for name, target in names_of(weight_map, path)}
    assert wanted.items() <= found.items()
    assert bool(wanted) == bool(found)
