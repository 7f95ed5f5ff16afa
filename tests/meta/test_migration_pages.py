"""The pages for those who come from other servers follow what dovetail has."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import ollama_page

    yield ollama_page
    for name in ("ollama_page", "migration_pages"):
        sys.modules.pop(name, None)


def row(page: str, name: str) -> str:
    found = re.search(rf"^\| `{re.escape(name)}` \| (.*) \|$", page, re.MULTILINE)
    assert found, name
    return found[1]


def test_every_name_of_ollama_has_its_row(ollama: Any) -> None:
    names = json.loads((ROOT / "tests" / "reference" / "ollama.json").read_text())
    page = ollama.ollama_page("")
    assert all(row(page, name) for of_one in names.values() for name in of_one)
    assert row(page, "temperature").startswith("the same")


def test_a_command_that_comes_fills_its_row(ollama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [name for name in registry.names("command") if name != "ps"]
    monkeypatch.setattr(registry, "names", lambda kind: others)
    monkeypatch.setitem(ollama.INSTEAD["commands"], "ps", "not here")
    assert "`dovetail ps`" not in ollama.ollama_page("")
    monkeypatch.setattr(registry, "names", lambda kind: [*others, "ps"])
    assert row(ollama.ollama_page(""), "ps") == "`dovetail ps`"


def test_a_row_cannot_name_what_does_not_exist(
    ollama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("`--no-such-flag`", "`/no/such/path`", "`dovetail nothing`", "`no_such_field`"):
        monkeypatch.setitem(ollama.INSTEAD["commands"], "push", wrong)
        with pytest.raises(ValueError, match="push"):
            ollama.ollama_page("")
