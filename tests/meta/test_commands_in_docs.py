"""Every `dovetail COMMAND --flag` that README, how-tos and tutorials show has such a flag."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from dovetail import registry
from dovetail.cli.main import KIND, load_command, part_of
from dovetail.cli.parser import Parser

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/how_to/*.md"), *ROOT.glob("docs/tutorials/*.md")]
)
SHOWN = re.compile(r"(?:^|`|\$ )dovetail ([a-z-]+)((?: [^`\n|#;>]*)?)", re.M)
EVERYWHERE = {"--help", "--verbose", "--config"}


@cache
def flags_of(command: str, part: str) -> frozenset[str]:
    """Return the flags of a command, or of a part of one."""
    found = load_command(command)
    if found.parts:
        if part not in found.parts:
            return frozenset()
        found = part_of(found, part)
    parser = Parser(prog="dovetail", description="")
    found.add_arguments(parser)
    spelled = {option for action in parser._actions for option in action.option_strings}
    return frozenset(spelled | {s for flag in parser.flags() for s in flag.spellings} | EVERYWHERE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_of_shown_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for command, rest in SHOWN.findall(text):
        if command not in registry.names(KIND):
            continue
        words = f"{rest} ".partition(" -- ")[0].split()  # the rest is another program's
        known = flags_of(command, words[0] if words else "")
        for word in words:
            name = re.split(r"[=.]", word)[0].replace("_", "-").rstrip("),:")
            if name.startswith("--") and known:
                plain = {name, name.replace("--no-", "--", 1)}
                assert plain & known, f"`dovetail {command}{rest}` has no flag {name}"
