"""The page for those who come from llama-server names what dovetail has."""

from __future__ import annotations

import re
from pathlib import Path

from dovetail import registry
from dovetail.config.config import flags
from dovetail.server.families import own_apis

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "from_llama_server.md"
OF_OTHERS = {"--help", "--version"}
"""Flags of the command line itself."""


def rows(title: str) -> list[tuple[str, str]]:
    section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.MULTILINE)
    return found[1:]


def known_flags() -> set[str]:
    spellings = {one for flag in flags().values() for one in flag.spellings}
    return spellings | {f"--no-{one[2:]}" for one in spellings} | OF_OTHERS


def test_every_flag_on_our_side_exists() -> None:
    theirs = [name for left, _ in rows("Flags") for name in re.findall(r"`(-[\w-]+)", left)]
    ours = {name for _, right in rows("Flags") for name in re.findall(r"(--[a-z][\w-]+)", right)}
    assert len(theirs) > 100 and len(ours) > 40
    assert ours - known_flags() == set()


def test_no_flag_has_two_rows() -> None:
    names = [name for left, _ in rows("Flags") for name in re.findall(r"`(-[\w-]+)", left)]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def test_paths_that_are_the_same_exist() -> None:
    routes = {route.path for one in own_apis() for route in registry.make(one).routes}
    for left, right in rows("Paths"):
        for path in re.findall(r"(?:GET )?(/[\w/-]+)", left):
            is_absent = right.startswith(("not here", "refused")) or path.startswith("/slots/")
            assert is_absent or path in routes, path
