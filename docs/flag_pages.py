"""The pages flags.md and variables.md of docs/reference, made from the flags and `compat`."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.config.compat.deprecated_flags import DeprecatedFlags, deprecated_flags
from dovetail.config.config import GROUPS, flags
from dovetail.config.parse.environment import OWN, today
from dovetail.config.parse.foreign_variables import (
    NoEffect,
    ReadBy,
    Row,
    Setting,
    UnsupportedVariable,
    foreign_variables,
)
from dovetail.config.report.describe import choices, default_text, state_of, usage
from dovetail.config.sections.convert import bounds_text
from dovetail.config.sections.field import Flag, flags_of, group_title

_HEAD = """# Flags of `dovetail serve`

<!-- Written by docs/generate.py; run `make docs` after a change. -->

A flag can be written with dashes or underscores, as `--flag value` or `--flag=value`. In the YAML
file of `--config FILE.yaml` it is written without the leading dashes. Switches have a `--no-` form.
Integers can be written as `4k` (4000) or `4K` (4096). A JSON flag takes the whole value
(`--hf-overrides '{"a": 1}'`) or single keys (`--hf-overrides.a 1`). A list takes separate words, a
comma-separated list or JSON. Every flag has an environment variable, such as
`DOVETAIL_MAX_MODEL_LEN` for `--max-model-len` ([variables.md](variables.md)). The command line
overrides variables, variables override files, and a later file overrides an earlier one; JSON
objects are merged key by key. The choices listed here are those of dovetail itself; installed
packages may add more.

A flag is in one of three states. *Supported*: it does what it says. *Deprecated*: an older name
that is translated to today's flag, with a log line. *Unsupported*: it asks for something that
dovetail does not do; its default value is accepted, any other value is an error that says what is
missing. {counts} Newer flags of `vllm serve` that have no flag of their name here are taken too:
[from_vllm.md](from_vllm.md#newer-flags) says what becomes of each.
"""


def flags_page() -> str:
    """Return the whole reference page as Markdown."""
    states = [state_of(flag)[0] for flag in (*flags().values(), *deprecated_flags().values())]
    counts = ", ".join(
        f"{states.count(s)} are {s}" for s in ("supported", "deprecated", "unsupported")
    )
    head = _HEAD.replace("{counts}", f"Of {len(states)} flags {counts}.")
    return "\n".join([head, *group_sections((*GROUPS.values(), DeprecatedFlags))])


def group_sections(groups: Iterable[type[object]]) -> list[str]:
    """Return the heading and the flags of every group as Markdown."""
    parts = []
    for group in groups:
        parts.append(f"## {group.__name__}: {group_title(group)}\n")
        parts += [_entry(flag) for flag in flags_of(group)]
    return parts


def _entry(flag: Flag) -> str:
    text = flag.meta.help[0].upper() + flag.meta.help[1:]
    state, reason = state_of(flag)
    facts = [] if state == "supported" else [f"**{state.capitalize()}**: {reason}"]
    facts += [f"Default: {_code(default_text(flag), flag)}"]
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


_VARIABLES_HEAD = """# Environment variables

<!-- Written by docs/generate.py; run `make docs` after a change. -->

Every flag of `dovetail serve` ([flags.md](flags.md)) has a variable: `DOVETAIL_` and the name of
the flag in capitals, with underscores for dashes. The value is written as on the command line, a
list with commas. An empty variable sets nothing. For an unknown name that begins with `DOVETAIL_`
or `VLLM_` there is a warning that suggests the nearest known one. `dovetail config show --origin`
shows what each variable has set.

| other variables of dovetail | what |
|---|---|
{own}

Variables of other programs: a *mapped* one sets a flag, which is logged. *No effect*: it asks for
what dovetail always does, which is logged. *Read*: the named library or part of dovetail reads it.
An *unsupported* one is an error unless it is empty or asks for nothing (mostly 0 or false). Two
variables that give one flag different values are an error.

| variable | state | what |
|---|---|---|
{foreign}
"""


def variables_page() -> str:
    """Return docs/reference/variables.md."""
    own = [f"| `{name}` | {text} |" for name, text in sorted(OWN.items())]
    foreign = [
        f"| `{name}` | {' | '.join(row_words(row))} |" for name, row in foreign_variables().items()
    ]
    page = _VARIABLES_HEAD.replace("{own}", "\n".join(own))
    return page.replace("{foreign}", "\n".join(sorted(foreign)))


def row_words(row: Row) -> tuple[str, str]:
    """Return the state of a variable of another name, and what it means."""
    match row:
        case Setting():
            return "mapped", today(row)
        case NoEffect():
            return "no effect", row.always
        case ReadBy():
            return "read", f"by {row.who}"
        case UnsupportedVariable():
            return "unsupported", row.missing.removesuffix(".")
