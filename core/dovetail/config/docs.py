"""Writes docs/reference/flags.md from the dataclasses.

Run as `python -m dovetail.config.docs`, with --check to compare only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dovetail.config.convert import bounds_text
from dovetail.config.describe import choices, default_text, usage
from dovetail.config.engine import GROUPS
from dovetail.config.field import Flag, flags_of, group_title

_HEAD = """# Flags of `dovetail serve`

<!-- Written by `python -m dovetail.config.docs` from the dataclasses in core/dovetail/config. -->

Every flag may be spelled with dashes or underscores, as `--flag value` or `--flag=value`, and may
stand in the YAML file given with `--config FILE.yaml` under its name without the leading dashes.
Switches have a `--no-` form. Whole numbers may be written as `4k` (4000) or `4K` (4096). A JSON
flag takes the whole value (`--hf-overrides '{"a": 1}'`) or single keys (`--hf-overrides.a 1`), and
a list takes words, a comma list or JSON. The command line wins over the file, a later file over an
earlier one. Choices are the names registered by dovetail itself; installed packages may add more.
"""


def flags_page() -> str:
    """Return the whole reference page as Markdown."""
    parts = [_HEAD]
    for group in GROUPS.values():
        parts.append(f"## {group.__name__}: {group_title(group)}\n")
        parts += [_entry(flag) for flag in flags_of(group)]
    return "\n".join(parts)


def _entry(flag: Flag) -> str:
    text = flag.meta.help[0].upper() + flag.meta.help[1:]
    facts = [f"Default: {_code(default_text(flag), flag)}"]
    if flag.meta.unit:
        facts.append(f"Unit: {flag.meta.unit}")
    if bounds_text(flag):
        facts.append(f"Range: {bounds_text(flag)}")
    if flag.meta.kind:
        names = ", ".join(f"`{name}`" for name in choices(flag, is_own_only=True))
        facts.append(f"Plugin kind: `{flag.meta.kind}`" + (f" ({names})" if names else ""))
    return f"### `{usage(flag)}`\n\n{text}.\n\n" + "".join(f"- {fact}\n" for fact in facts)


def _code(text: str, flag: Flag) -> str:
    return text if flag.meta.default_note else f"`{text}`"


def main(argv: list[str]) -> int:
    """Write the page, or with --check compare it. Returns 1 when it is out of date."""
    path = Path(__file__).resolve().parents[3] / "docs" / "reference" / "flags.md"
    page = flags_page()
    if "--check" in argv:
        current = path.read_text(encoding="utf-8") if path.is_file() else ""
        if current != page:
            print(f"{path} is out of date: run python -m dovetail.config.docs", file=sys.stderr)
        return int(current != page)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
