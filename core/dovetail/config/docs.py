"""The page docs/reference/flags.md, made from the dataclasses whose fields are the flags."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.config.convert import bounds_text
from dovetail.config.describe import choices, default_text, usage
from dovetail.config.engine import GROUPS
from dovetail.config.field import Flag, flags_of, group_title

_HEAD = """# Flags of `dovetail serve`

<!-- Written by docs/generate.py; run `make docs` after a change. -->

Every flag may be spelled with dashes or underscores, as `--flag value` or `--flag=value`, and may
stand in the YAML file given with `--config FILE.yaml` under its name without the leading dashes.
Switches have a `--no-` form. Whole numbers may be written as `4k` (4000) or `4K` (4096). A JSON
flag takes the whole value (`--hf-overrides '{"a": 1}'`) or single keys (`--hf-overrides.a 1`), and
a list takes words, a comma list or JSON. The command line wins over the file, a later file over an
earlier one. Choices are the names registered by dovetail itself; installed packages may add more.
"""


def flags_page() -> str:
    """Return the whole reference page as Markdown."""
    return "\n".join([_HEAD, *group_sections(GROUPS.values())])


def group_sections(groups: Iterable[type[object]]) -> list[str]:
    """Return the heading and the flags of every group as Markdown."""
    parts = []
    for group in groups:
        parts.append(f"## {group.__name__}: {group_title(group)}\n")
        parts += [_entry(flag) for flag in flags_of(group)]
    return parts


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
