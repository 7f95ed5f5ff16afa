"""Request fields without effect: they are reported, counted, or refused.

A known field that would change the answer is refused (`foreign_fields`). A response header lists
every ignored one. Unknown ones are logged once per name, and are an error with
--strict-request-fields.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator

from pydantic import BaseModel
from starlette.responses import Response

from dovetail.engine.client.requests.claims import XARGS
from dovetail.errors import RequestError
from dovetail.observability import metrics
from dovetail.observability.caller import enter_user
from dovetail.server.generate.body.fields import SamplingFields
from dovetail.server.generate.body.foreign_fields import fault_of, is_hint, is_silent

HEADER = "x-dovetail-ignored-fields"
MAX_NAMES = 32
MAX_NAME_CHARS = 64
MAX_WARNED_NAMES = 256

logger = logging.getLogger("dovetail.server")


class FieldReporter:
    """Remembers for which names a warning was logged, up to a limit."""

    def __init__(
        self, *, is_strict: bool, claimed: frozenset[str] = frozenset(), names_users: bool = False
    ) -> None:
        """`claimed` are the fields that plugins of the engine read. With `names_users` each
        request's owner becomes the user whom its body names."""
        self._is_strict = is_strict
        self._names_users = names_users
        self.claimed = claimed | {XARGS}
        self._warned: set[str] = set()

    def check(
        self, body: BaseModel, *, known: Iterable[str] = (), is_answered: bool = True
    ) -> list[str]:
        """Return the names to report for a body. `known` are dotted prefixes to skip.

        If the model gives no answer (`is_answered` false), no field can change it. Raises:
        RequestError for refused fields, and for unknown ones when strict.
        """
        if self._names_users and (user := _user_of(body)):
            enter_user(user)
        passed = tuple(known)
        names = [n for n in dict.fromkeys(unknown_fields(body)) if not n.startswith(passed)]
        extra, is_drawn = body.model_extra or {}, isinstance(body, SamplingFields)
        if is_answered and is_drawn:
            names = [name for name in names if name not in self.claimed]
        for name in names if is_answered else ():
            fault = fault_of(name, extra.get(name), is_drawn=is_drawn)
            if fault is not None:
                raise RequestError(fault, where=name, code="unsupported_field")
        names = [name for name in names if not is_silent(name, extra.get(name))]
        self.report([name for name in names if not is_hint(name.rpartition(".")[2])])
        return names

    def report(self, names: Iterable[str]) -> list[str]:
        """Count ignored fields, log them and return their names. Raises: RequestError when
        strict."""
        names = list(names)
        if names and self._is_strict:
            raise RequestError(
                f"unknown field(s): {', '.join(map(header_name, names[:MAX_NAMES]))}.",
                where=header_name(names[0]),
                fix="leave them out, or start the server without --strict-request-fields.",
                code="unknown_field",
            )
        for name in map(header_name, names[:MAX_NAMES]):
            self._warn(name)
        return names

    def _warn(self, name: str) -> None:
        is_new = name not in self._warned
        if is_new and len(self._warned) >= MAX_WARNED_NAMES:
            name = "other"
        elif is_new:
            self._warned.add(name)
            logger.warning("unknown request field %s is ignored", name)
        metrics.IGNORED_FIELDS.labels(name).inc()


def _user_of(body: BaseModel) -> str:
    """Return the user whom a body names in OpenAI's or Anthropic's fields, or ""."""
    metadata = getattr(body, "metadata", None)
    inner = metadata.get("user_id") if isinstance(metadata, dict) else None
    names = (getattr(body, "safety_identifier", None), getattr(body, "user", None), inner)
    return next((name for name in names if name and isinstance(name, str)), "")


def unknown_fields(body: BaseModel, prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of undeclared fields, without list positions."""
    for name in body.model_extra or {}:
        yield prefix + name
    for name in type(body).model_fields:
        value = getattr(body, name)
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, BaseModel):
                yield from unknown_fields(part, f"{prefix}{name}.")


def json_reply(reply: BaseModel, ignored: Iterable[str]) -> Response:
    """Return a body as a response with the ignored fields in a header. Absent values are null."""
    names = list(ignored)
    return Response(
        reply.model_dump_json(),
        media_type="application/json",
        headers={HEADER: header_value(names)} if names else {},
    )


def header_name(name: str) -> str:
    """Return a field name made safe for a header, a log line or a label."""
    return re.sub(r"[^\w.\[\]-]", "?", name, flags=re.ASCII)[:MAX_NAME_CHARS]


def header_value(names: Iterable[str]) -> str:
    """Return the header's value."""
    shown = [header_name(name) for name in names]
    more = ["..."] if len(shown) > MAX_NAMES else []
    return ", ".join(shown[:MAX_NAMES] + more)
