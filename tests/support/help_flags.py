"""Lists the flags of a command from its --help text, and what is new or gone since a stored list.

For another version of vLLM: `vllm serve --help=all > help.txt`, then

    PYTHONPATH=core:plugins:kernels python tests/support/help_flags.py help.txt [--write]

prints the flags that are new, gone or changed, and the new ones that need a row in
plugins/dovetail_plugins/foreign_flags/vllm.py. `--write` stores the list as the reference.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parents[1] / "reference" / "vllm_flags.json"
_OPTION = re.compile(r" {1,4}(-\S.*)")
_HELP = re.compile(r"\s{2,}")
_CHOICES = re.compile(r"\{([^}]*)\}")

Row = dict[str, Any]


def flags_in(text: str) -> list[Row]:
    """Return flag, aliases and choices of each option of an argparse help text, by name.

    The negative form of a switch is no alias; options without a long name are left out.
    """
    rows: dict[str, Row] = {}
    for line in text.splitlines():
        found = _OPTION.fullmatch(line)
        row = None if found is None else _row(_HELP.split(found[1])[0])
        if row is not None:
            rows[row["flag"]] = row
    return [rows[name] for name in sorted(rows)]


def _row(usage: str) -> Row | None:
    choices = _CHOICES.search(usage)
    words = [part.split()[0].rstrip(",") for part in _CHOICES.sub("X", usage).split(", ") if part]
    names = [word for word in words if word.startswith("-")]
    names = [name for name in names if f"--{name.removeprefix('--no-')}" not in names[:-1]]
    long = [name for name in names if name.startswith("--")]
    if not long:
        return None
    return {
        "flag": long[0],
        "aliases": sorted(name for name in names if name != long[0]),
        "choices": sorted(choices[1].split(",")) if choices else [],
    }


def changes(old: Sequence[Row], new: Sequence[Row]) -> list[str]:
    """Return a line for each flag that is new, gone, or has other aliases or choices."""
    before, after = _by_flag(old), _by_flag(new)
    lines = [f"new: {name}" for name in sorted(after.keys() - before.keys())]
    lines += [f"gone: {name}" for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        for key in ("aliases", "choices"):
            ours, theirs = set(before[name][key]), set(after[name][key])
            words = [f"+{one}" for one in sorted(theirs - ours)]
            words += [f"-{one}" for one in sorted(ours - theirs)]
            if words and (key == "aliases" or ours):
                lines.append(f"changed: {name} {key} {' '.join(words)}")
    return lines


def unknown(rows: Iterable[Row]) -> list[str]:
    """Return the spellings that `dovetail serve` does not take."""
    from dovetail.cli.parser import Parser
    from dovetail.config.parse.flags import add_flags, add_newer

    parser = Parser(prog="dovetail serve", description="")
    add_flags(parser)
    add_newer(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    named = (name for row in rows for name in (row["flag"], *row["aliases"]))
    return sorted(name for name in named if name not in known | {"--help", "-h"})


def as_text(rows: Iterable[Row]) -> str:
    """Return the list as JSON with a line for each flag."""
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n"


def _by_flag(rows: Iterable[Row]) -> Mapping[str, Row]:
    return {row["flag"]: row for row in rows if row["flag"] != "--help"}


def main(argv: Sequence[str]) -> int:
    """Compare a help text with the stored list; return the exit status."""
    paths = [word for word in argv if word != "--write"]
    if len(paths) != 1:
        print("usage: help_flags.py HELP.txt [--write]", file=sys.stderr)
        return 2
    rows = flags_in(Path(paths[0]).read_text(encoding="utf-8"))
    if not rows:
        print(f"{paths[0]} has no options in argparse's form.", file=sys.stderr)
        return 1
    for line in changes(json.loads(REFERENCE.read_text(encoding="utf-8")), rows):
        print(line)
    for name in unknown(rows):
        print(f"needs a row: {name}")
    if "--write" in argv:
        REFERENCE.write_text(as_text(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
