"""Accounts of a killed server: a small run of benchmarks/killed_accounts.py, and its rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.killed_accounts import Seen, run, wrong_accounts


def seen() -> Seen:
    """Return what clients saw: two whole requests of a key, and two that were cut."""
    found = Seen()
    found.whole["ann"] = [2, 30, 16, 4]
    found.cut["ann"] = [7, 12]
    return found


@pytest.mark.parametrize(
    "row", [[2, 30, 16, 4], [3, 37, 16, 4], [3, 42, 20, 6], [4, 49, 16, 8]], ids=str
)
def test_cut_requests_may_be_accounted_for_once(row: list[int]) -> None:
    assert wrong_accounts(seen(), {"ann": row}) == []


@pytest.mark.parametrize(
    "row",
    [
        [1, 15, 0, 2],  # one is lost
        [2, 30, 15, 4],  # a cached token is
        [2, 30, 16, 5],  # a token came from nowhere
        [3, 45, 16, 6],  # a whole one is counted twice
        [4, 44, 16, 8],  # a cut one is
        [5, 56, 16, 8],
        [3, 37, 16, 7],  # more tokens than a request may draw
    ],
    ids=str,
)
def test_what_is_lost_or_counted_twice_is_found(row: list[int]) -> None:
    assert len(wrong_accounts(seen(), {"ann": row})) == 1


def test_a_key_that_nobody_used_is_found() -> None:
    assert len(wrong_accounts(seen(), {"ann": [2, 30, 16, 4], "bob": [1, 1, 0, 1]})) == 1


@pytest.mark.full_only
@pytest.mark.timeout(900)
def test_a_server_that_is_killed_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, requests=1000, kills=2, keys=50, connections=16) == []
    assert "2 kills" in capsys.readouterr().out
