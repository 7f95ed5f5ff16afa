"""Fields that a request sent and nothing here honours: reported, counted, or refused.

Every ignored field is named in a response header; unknown ones are warned of once per name, and
are an error with --strict-request-fields.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from pydantic import BaseModel

from dovetail.errors import RequestError
from dovetail.observability import metrics
from dovetail.server.protocol.common import NEUTRAL, REFUSED, WITHOUT_EFFECT, unknown_fields

HEADER = "x-dovetail-ignored-fields"
MAX_NAMES = 32
MAX_NAME_CHARS = 64
MAX_WARNED_NAMES = 256

logger = logging.getLogger("dovetail.server")


class FieldReporter:
    """Keeps which names were warned of, within a bound."""

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._warned: set[str] = set()

    def check(self, body: BaseModel, *, known: Iterable[str] = ()) -> list[str]:
        """Return the names to report for a body; `known` are dotted prefixes to pass over.

        Raises: RequestError for refused fields, and for unknown ones when strict.
        """
        passed = tuple(known)
        names = [n for n in dict.fromkeys(unknown_fields(body)) if not n.startswith(passed)]
        for name in names:
            if name in REFUSED and _asks(name, (body.model_extra or {}).get(name)):
                raise RequestError(f"{REFUSED[name]}.", where=name, code="unsupported_field")
        self._report([n for n in names if n.rpartition(".")[2] not in WITHOUT_EFFECT])
        return names

    def report(self, names: Iterable[str]) -> list[str]:
        """Report names found ignored later. Raises: RequestError when strict."""
        found = list(names)
        self._report(found)
        return found

    def _report(self, names: list[str]) -> None:
        if names and self._is_strict:
            raise RequestError(
                f"unknown field(s): {', '.join(map(header_name, names[:MAX_NAMES]))}.",
                where=header_name(names[0]),
                fix="leave them out, or start the server without --strict-request-fields.",
                code="unknown_field",
            )
        for name in map(header_name, names[:MAX_NAMES]):
            self._warn(name)

    def _warn(self, name: str) -> None:
        is_new = name not in self._warned
        if is_new and len(self._warned) >= MAX_WARNED_NAMES:
            name = "other"
        elif is_new:
            self._warned.add(name)
            logger.warning("unknown request field %s is ignored", name)
        metrics.IGNORED_FIELDS.labels(name).inc()


def _asks(name: str, value: object) -> bool:
    """Return whether a refused field asks for something; many clients write defaults out."""
    return value not in NEUTRAL and (name, value) != ("best_of", 1)


def header_name(name: str) -> str:
    """Return a field name as it may stand in a header, a log line or a label."""
    return re.sub(r"[^\w.\[\]-]", "?", name, flags=re.ASCII)[:MAX_NAME_CHARS]


def header_value(names: Iterable[str]) -> str:
    """Return the header's value."""
    shown = [header_name(name) for name in names]
    more = ["..."] if len(shown) > MAX_NAMES else []
    return ", ".join(shown[:MAX_NAMES] + more)
