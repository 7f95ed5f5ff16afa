"""Makes the table with which a command line of another server is written as `dovetail serve`.

A table is plain data: `programs` are the words that start the server, `flags` the spelling of each
flag -> its row, `defaults` [spellings, our words, why] where its default differs from ours,
`joined` the value of a flag of ours that several of theirs gave values (sorted, with blanks
between). A row has what the flag `takes` (value, list or switch), our words with {} for its value
(`here`), our words by value (`values`), and a `note`. A row without our words changes nothing, or,
with `absent`, asks for what is not here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

VALUE, LIST, SWITCH = "value", "list", "switch"
MODEL = "MODEL {}"
"""Our words for the model, which is the first argument."""

Row = dict[str, Any]
Rows = dict[str, Row]


def same(names: str, takes: str = VALUE) -> Rows:
    """Return rows of flags that have the same name here."""
    return {
        name: _row(takes, name if takes == SWITCH else f"{name} {{}}") for name in names.split()
    }


def to(
    names: str,
    here: str,
    takes: str = VALUE,
    note: str = "",
    values: Mapping[str, str] | None = None,
) -> Rows:
    """Return rows of other names for our words `here`; some `values` have other words."""
    return dict.fromkeys(names.split(), _row(takes, here, note) | {"values": dict(values or {})})


def by_value(names: str, values: Mapping[str, str], otherwise: str) -> Rows:
    """Return rows of flags whose values have our words; another one is absent for a reason."""
    row = _row(VALUE, "", otherwise) | {"values": dict(values), "absent": True}
    return dict.fromkeys(names.split(), row)


def needless(names: str, note: str, takes: str = VALUE) -> Rows:
    """Return rows of flags that change nothing here."""
    return dict.fromkeys(names.split(), _row(takes, "", note))


def absent(names: str, note: str, takes: str = VALUE) -> Rows:
    """Return rows of flags that ask for what is not here."""
    return dict.fromkeys(names.split(), _row(takes, "", note) | {"absent": True})


def table(
    programs: Iterable[str],
    *rows: Rows,
    defaults: Iterable[tuple[str, str, str]] = (),
    joined: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Return the table of a server."""
    flags: Rows = {}
    for one in rows:
        doubled = flags.keys() & one.keys()
        if doubled:
            raise ValueError(f"two rows for {', '.join(sorted(doubled))}")
        flags |= one
    return {
        "programs": list(programs),
        "flags": flags,
        "defaults": [[names.split(), here, why] for names, here, why in defaults],
        "joined": {flag: dict(values) for flag, values in (joined or {}).items()},
    }


def words_of(here: str, values: Iterable[str]) -> list[str]:
    """Return our words with the values in the place of {}."""
    given = list(values)
    words = []
    for word in shlex.split(here):
        if word == "{}":
            words += given
        else:
            words.append(word.replace("{}", " ".join(given)))
    return words


def _row(takes: str, here: str, note: str = "") -> Row:
    return {"takes": takes, "here": here, "note": note, "values": {}, "absent": False}
