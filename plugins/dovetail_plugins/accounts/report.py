"""Reports: what was used, by owner, model and day, out of a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import msgspec

from dovetail.errors import RequestError
from dovetail_plugins.accounts.ledger import Ledger

PARTS = ("owner", "model", "day")
"""What rows can be divided by."""
_WORK = "u.prompt - u.cached + u.generated"
"""The tokens that were computed, by which the device's seconds of a day and a model are divided."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was used. Parts by which rows are not divided are empty."""

    owner: str | None = None
    model: str | None = None
    day: str | None = None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    device_seconds: float


def rows_of(
    ledger: Ledger,
    *,
    by: Sequence[str] = PARTS,
    owner: str | None = None,
    model: str | None = None,
    start: str = "",
    end: str = "~",
) -> list[Row]:
    """Return what was used from the day `start` to `end`, both included, by some of PARTS.

    `owner` selects that owner and its users (OWNER/USER). Raises: sqlite3.Error
    """
    chosen = [part for part in PARTS if part in by]
    names = ", ".join(f"u.{part}" for part in chosen)
    where = ["u.day BETWEEN ? AND ?"]
    values: list[str | int] = [start, end]
    if owner is not None:
        where.append("(u.owner = ? OR substr(u.owner, 1, ?) = ?)")
        values += [owner, len(owner) + 1, f"{owner}/"]
    if model is not None:
        where.append("u.model = ?")
        values.append(model)
    query = f"""
        WITH work AS (SELECT day, model, SUM({_WORK}) AS tokens FROM usage u GROUP BY day, model)
        SELECT {names + "," if names else ""} SUM(u.requests), SUM(u.prompt), SUM(u.cached),
            SUM(u.generated), SUM(COALESCE(d.seconds, 0) * ({_WORK}) / MAX(w.tokens, 1))
        FROM usage u JOIN work w ON w.day = u.day AND w.model = u.model
        LEFT JOIN device d ON d.day = u.day AND d.model = u.model
        WHERE {" AND ".join(where)} {"GROUP BY " + names if names else ""} ORDER BY {names or 1}
    """
    with closing(ledger.connect()) as db:
        found = db.execute(query, values).fetchall()
    return [_row(chosen, values) for values in found if values[len(chosen)]]


def _row(parts: Sequence[str], values: Sequence[Any]) -> Row:
    named = dict(zip(parts, values, strict=False))
    requests, prompt, cached, generated, seconds = values[len(parts) :]
    return Row(
        **named, requests=requests, prompt_tokens=prompt, cached_tokens=cached,
        generated_tokens=generated, device_seconds=round(seconds, 3),
    )  # fmt: skip


def checked_parts(text: str, where: str) -> list[str]:
    """Return the parts in a list with commas. Raises: RequestError"""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in parts if part not in PARTS]
    if wrong:
        fix = f"use some of {', '.join(PARTS)}."
        raise RequestError(f"{wrong[0][:64]!r} is not a part of accounts.", where=where, fix=fix)
    return parts
