"""The page request_fields.md of docs/reference: the tables of the kind `request_fields`."""

from __future__ import annotations

import json
from pkgutil import resolve_name
from typing import Any

from migration_pages import table

HEAD = """\
# Fields of requests to other servers

{note}

What a field of another server's API means in a request to this one: in chat, completions,
responses, messages and Ollama's API alike, unless the API has a field of that name already. A
package adds fields with the entry-point group `dovetail.request_fields`.

- **honoured**: the field has this name here, too.
- **claimed**: a [sampler](../how_to/choose_samplers.md), or another logits processor, reads it
  under this name.
- **mapped**: it is read as the field in the table. A fault in it is reported under the name as
  sent. Two fields that say different things are refused; so is a field that this API cannot honour.
- **ignored**: it changes no answer. The response header `x-dovetail-ignored-fields` names it, as it
  names fields that nobody knows.
- **refused**: it would change the answer and cannot be honoured: status 400, with the field's name
  as `param`.

Values that ask for nothing are accepted everywhere: null, and mostly false, empty ones and those in
the last column.
"""
ORDER = ("honoured", "claimed", "mapped", "ignored", "refused")


def request_fields_page(note: str) -> str:
    """Return every row of every table, a section for each."""
    from dovetail import registry
    from dovetail.server.generate.body.foreign_fields import KIND

    parts = [HEAD.format(note=note)]
    for entry in sorted(registry.entries(KIND), key=lambda entry: entry.name):
        value = registry.admin.load_entry(entry)
        table_rows = resolve_name(value.value)
        rows = sorted(table_rows.items(), key=lambda item: (ORDER.index(item[1].how), item[0]))
        parts.append(f"## {value.summary[0].upper()}{value.summary[1:]}\n")
        columns = ["field", "whose", "here", "what it means", "asks for nothing"]
        parts.append(table(columns, (_cells(name, row) for name, row in rows)))
    return "\n".join(parts)


def _cells(name: str, row: Any) -> tuple[str, ...]:
    neutral = ", ".join(f"`{json.dumps(one)}`" for one in row.neutral)
    return f"`{name}`", row.whose, row.how, row.what.replace("|", "\\|"), neutral
