"""A child that imports before its message: it is used if it fits, and ends silently otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.processes import process
from dovetail_plugins.commands._engine_ahead import started_ahead
from support.orphans import own_children

LIMIT_S = 20.0
CHILD = """
import sys
from dovetail.processes import process

def main():
    with open(process.read_boot(str), "w") as file:
        file.write(str("mate" in sys.modules))
    return 0
"""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No child of this process outlives a test."""
    yield
    assert own_children() == []


@pytest.fixture
def mates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder on the import path with a child's module and another."""
    (tmp_path / "errand.py").write_text(CHILD)
    (tmp_path / "mate.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("variables", [{}, {"DOVETAIL_TOLD": "late"}])
def test_a_child_that_was_started_ahead_is_used_if_it_has_the_environment(
    mates: None, tmp_path: Path, variables: dict[str, str]
) -> None:
    with started_ahead("errand", "mate", {}):
        ahead = own_children()[0].pid
        child = process.spawn("errand", str(tmp_path / "loaded"), variables=variables)
        assert (child.pid == ahead) is (not variables)
        assert own_children()[0].pid == child.pid, "the other one has ended"
        assert child.wait(LIMIT_S) == 0
    assert (tmp_path / "loaded").read_text() == str(not variables)
    assert child.end(0.0) == 0


def test_an_import_that_fails_is_left_to_the_module(
    mates: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mate.py").write_text("raise AssertionError")
    with started_ahead("errand", "mate", {}):
        child = process.spawn("errand", str(tmp_path / "loaded"))
        assert child.wait(LIMIT_S) == 0
    assert (tmp_path / "loaded").read_text() == "False"
    assert capfd.readouterr().err == ""
    assert child.end(0.0) == 0


def test_a_child_that_was_started_ahead_ends_silently_if_it_is_not_needed(
    mates: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with started_ahead("errand", "mate", {}):
        assert len(own_children()) == 1
    assert own_children() == []
    assert capfd.readouterr().err == ""
