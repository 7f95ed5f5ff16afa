"""`dovetail plugins`: what it prints, and that a missing pytest is said clearly."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from dovetail import registry
from dovetail.cli.main import main

SAMPLES = "support.sample_plugins"
KIND = "scheduling_policy"


@pytest.fixture(autouse=True)
def entries() -> Iterator[None]:
    """Hide everything but three sample plugins."""
    names = {"good": "Good", "gone": "Unavailable", "wrong": "Abstract"}
    targets = {name: f"{SAMPLES}:{attribute}" for name, attribute in names.items()}
    commands = {"plugins": "dovetail_plugins.commands.plugins:PluginsCommand"}
    with registry.admin.with_entries({KIND: targets, "command": commands}, only=True):
        yield


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines if not line.startswith("command ")] == [
        [KIND, "gone", "test"],
        [KIND, "good", "test"],
        [KIND, "wrong", "test"],
    ]


def test_list_with_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "list", KIND, "--status", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in rows] == ["unavailable", "ok", "broken"]
    assert "does not implement key" in rows[2]["reason"]


@pytest.mark.parametrize("words", [["--json", KIND], [KIND, "--json"], ["--json", f"{KIND}:good"]])
def test_json_lists_what_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    other = {"hash_algorithm": {"elsewhere": f"{SAMPLES}:Good"}}
    with registry.admin.with_entries(other):
        assert main(["plugins", "list", *words]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert {row["kind"] for row in rows} == {KIND}
        assert len(rows) == (1 if ":" in words[-1] else 3)


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", f"{KIND}:good"]) == 0
    shown = capsys.readouterr().out
    assert "shortest first" in shown
    assert f"--plugin-options.{KIND}.limit int or None tokens (default None): limit" in shown
    assert main(["plugins", "show", f"{KIND}:wrong", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["status"] == "broken"


@pytest.mark.parametrize("word", ["no_kind", f"{KIND}:no_name"])
def test_unknown_words(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("list", "show", "check"):
        assert main(["plugins", action, word]) == 2
        assert (word.partition(":")[2] or word) in capsys.readouterr().err


def test_check_without_pytest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pytest", None)
    assert main(["plugins", "check", f"{KIND}:good"]) == 2
    assert 'pip install "dovetail-llm[plugin-check]"' in capsys.readouterr().err
