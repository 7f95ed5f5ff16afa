"""The list of another server's flags is made from its --help text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from support import help_flags
from support.help_flags import as_text, changes, flags_in, main, unknown


def help_text() -> str:
    parser = argparse.ArgumentParser(prog="other serve")
    parser.add_argument("model", nargs="?", help="what is served")
    group = parser.add_argument_group("Engine", "what --nothing here is an option")
    group.add_argument("--max-model-len", type=int, help="a long text " * 12 + "--not-a-flag")
    group.add_argument("--quantization", "-q", help="how weights are stored")
    group.add_argument("--dtype", choices=["auto", "bfloat16"])
    group.add_argument("--enable-lora", action=argparse.BooleanOptionalAction)
    group.add_argument("--brand-new", nargs="+", help="a flag that nobody knows yet")
    group.add_argument("-x", help="without a long name")
    return parser.format_help()


def test_the_options_of_a_help_text() -> None:
    assert flags_in(help_text()) == [
        {"flag": "--brand-new", "aliases": [], "choices": []},
        {"flag": "--dtype", "aliases": [], "choices": ["auto", "bfloat16"]},
        {"flag": "--enable-lora", "aliases": [], "choices": []},
        {"flag": "--help", "aliases": ["-h"], "choices": []},
        {"flag": "--max-model-len", "aliases": [], "choices": []},
        {"flag": "--quantization", "aliases": ["-q"], "choices": []},
    ]


def test_both_orders_of_a_short_name() -> None:
    older = "  --quantization NAME, -q NAME\n                        how\n"
    newer = "  -q, --quantization NAME\n                        how\n"
    assert flags_in(older) == flags_in(newer) != []


def test_what_is_new_gone_and_changed() -> None:
    old = [
        {"flag": "--dtype", "aliases": [], "choices": ["auto", "half"]},
        {"flag": "--max-model-len", "aliases": ["-l"], "choices": []},
        {"flag": "--enable-lora", "aliases": [], "choices": []},
        {"flag": "--worker-use-ray", "aliases": [], "choices": []},
    ]
    assert changes(old, flags_in(help_text())) == [
        "new: --brand-new",
        "new: --quantization",
        "gone: --worker-use-ray",
        "changed: --dtype choices +bfloat16 -half",
        "changed: --max-model-len aliases --l",
    ]
    assert changes(old, old) == []


def test_only_what_serve_does_not_take_needs_a_row() -> None:
    assert unknown(flags_in(help_text())) == ["--brand-new"]


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, text = tmp_path / "flags.json", tmp_path / "help.txt"
    monkeypatch.setattr(help_flags, "REFERENCE", stored)
    text.write_text(help_text(), encoding="utf-8")
    stored.write_text("[]", encoding="utf-8")
    assert main([str(text), "--write"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "new: --brand-new"
    assert lines[-1] == "needs a row: --brand-new"
    assert json.loads(stored.read_text()) == flags_in(help_text())
    assert main([str(text)]) == 0
    assert capsys.readouterr().out == "needs a row: --brand-new\n"
    text.write_text("no options at all\n", encoding="utf-8")
    assert main([str(text)]) == 1


def test_the_stored_list_is_in_the_form_that_is_written() -> None:
    text = help_flags.REFERENCE.read_text(encoding="utf-8")
    assert text == as_text(json.loads(text))
