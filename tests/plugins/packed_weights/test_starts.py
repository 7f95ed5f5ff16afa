"""Whole starts after random faults of the weight cache: the tokens are those without a cache."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dovetail_kernels.cpu.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="nothing is packed without the library")
ROOT = Path(__file__).resolve().parents[3]
ROUNDS = 12


def test_no_start_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m benchmarks.cache_faults` does the same 1,000 times."""
    monkeypatch.syspath_prepend(str(ROOT))
    found = importlib.import_module("benchmarks.cache_faults").measured(ROUNDS, seed=1)
    assert sum(one["rounds"] for one in found.values()) == ROUNDS
    assert [one["wrong"] for one in found.values()] == [0] * len(found), found
    assert [one["mapped"] for one in found.values()] == [one["rounds"] for one in found.values()]
    assert found["key"]["refused"] == found["key"]["rounds"]
