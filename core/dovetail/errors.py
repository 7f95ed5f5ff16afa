"""The exception tree: every error says what went wrong, where, and how to fix it.

Independent of processes and HTTP bodies; a request error carries the HTTP status it maps to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_FIX = " Fix: "
_END = (".", "!", "?", "\u2026")
_CLOSING = "\"'`)]"


def sentence(text: str) -> str:
    """Return the text with end punctuation added if it has none."""
    text = text.rstrip()
    return text if not text or text.rstrip(_CLOSING).endswith(_END) else f"{text}."


def listed(names: Sequence[str], max_names: int) -> str:
    """Return the first names, and how many more there are: "a, b and 7 more"."""
    more = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + more


def with_fix(what: str, fix: str | None) -> str:
    """Return the sentence and the fix as one text, which `split_fix` splits again."""
    return f"{sentence(what)}{_FIX}{sentence(fix)}" if fix else sentence(what)


def split_fix(text: str) -> tuple[str, str | None]:
    """Split a text made by `with_fix` into (what, fix)."""
    what, _, fix = text.partition(_FIX)
    return what, fix or None


class DovetailError(Exception):
    """Root of every error dovetail raises on purpose.

    `what` is one sentence, `where` a flag, field, file or request id, `fix` the next thing to try.
    Both sentences end in punctuation: a missing full stop is added. Commands within them are
    written in backquotes.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = sentence(what)
        self.where = where
        self.fix = sentence(fix) if fix else None
        super().__init__(self.what)

    @property
    def advice(self) -> str:
        """Return what is wrong and how to fix it, without `where`."""
        return with_fix(self.what, self.fix)

    def __str__(self) -> str:
        return f"{self.where}: {self.advice}" if self.where else self.advice


class ConfigError(DovetailError):
    """A flag, file or checkpoint requests something impossible. Exit status 2."""


class PluginError(ConfigError):
    """A named plugin cannot be used."""


class UnknownPlugin(PluginError):
    """No registered entry has this name."""


class AmbiguousPlugin(PluginError):
    """Two distributions offer the name; write name@distribution."""


class UnavailablePlugin(PluginError):
    """The entry exists, but this machine lacks a package or a device."""


class BrokenPlugin(PluginError):
    """The entry exists, but its code cannot be imported or breaks the interface."""


class RequestError(DovetailError):
    """The client requested something impossible. Ends that request only."""

    status = 400
    kind = "invalid_request_error"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        fix: str | None = None,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.code = code
        if status is not None:
            self.status = status


class NotFound(RequestError):
    """The named model or object does not exist here."""

    status = 404
    kind = "not_found_error"


def model_not_found(name: str, served: Iterable[str]) -> NotFound:
    """Return the error for a request that names a model which is not among those served."""
    return NotFound(
        f'the model "{name[:256]}" is not served here.',
        where="model",
        fix=f"use one of: {', '.join(served)}.",
        code="model_not_found",
    )


class Overloaded(RequestError):
    """The queue is full or the server is draining; retry after `retry_after_s` seconds."""

    status = 503
    kind = "overloaded_error"

    def __init__(self, what: str, *, retry_after_s: float = 1.0, status: int = 503) -> None:
        super().__init__(what, status=status, code="overloaded")
        self.retry_after_s = retry_after_s


class EngineAsleep(RequestError):
    """The engine has released its memory; it takes requests once it is woken up."""

    status = 503
    kind = "engine_asleep"


class RequestFault(DovetailError):
    """A fault inside the engine that ends one request (NaN logits, a plugin that raised)."""

    status = 500
    kind = "internal_error"


class EngineDead(DovetailError):
    """The engine process or a worker has died; nothing can be generated any more."""

    status = 503
    kind = "engine_dead"
