"""Accounts: what each owner used, kept in a folder, and as metrics.

Each finished request is written to a journal at once, and added to the sums in a database about
once a second, by a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats
from dovetail.observability.metrics import counter
from dovetail_plugins.accounts import service
from dovetail_plugins.accounts.journal import Entry, Journal
from dovetail_plugins.accounts.ledger import Ledger

logger = logging.getLogger("dovetail_plugins.accounts")
OPTION = "--plugin-options.stat_logger.accounts.folder"
READ_PERIOD_S = 1.0
LOOK_PERIOD = 10
"""In so many readings, one also looks for journals that ended processes left."""
MAX_OWNERS = 100
"""Owners with metrics of their own; all further ones are counted as "other"."""
OTHER = "other"
TOKENS = counter(
    "dovetail:owner_tokens", "Tokens of finished requests by owner and kind", ("owner", "kind")
)
REQUESTS = counter("dovetail:owner_requests", "Finished requests by owner", ("owner",))


@dataclass(frozen=True, kw_only=True)
class _Options:
    folder: str = field(
        default="", metadata={"help": "folder of the database; empty: the user's state folder"}
    )


class Accounts(StatLogger):
    """Requests count on the day (UTC) on which they end, whatever their end was."""

    info = Info(summary="tokens and seconds of the device by owner, model and day, in SQLite")
    Options = _Options

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self._model = model_name
        self._labels: set[str] = set()
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._has_news = False
        folder = Path(options.folder).expanduser() if options.folder else service.usual_folder()
        try:
            self._ledger = Ledger(folder)
            self._ledger.read_abandoned()
            self._journal = Journal(folder)
        except Exception as error:
            raise ConfigError(f"{folder} cannot be used: {error}.", where=OPTION) from error
        service.SERVED[folder] = self
        self._has_ended = threading.Event()
        self._reader = threading.Thread(target=self._read_on, name="accounts", daemon=True)
        self._reader.start()

    def step(self, stats: StepStats) -> None:
        """Count the device's seconds."""
        if stats.device_s:
            with self._lock:
                self._seconds[_today(), self._model] += stats.device_s
            self._has_news = True

    def request(self, stats: RequestStats) -> None:
        """Write a request to the journal. Raises: OSError"""
        owner = stats.caller.owner if stats.caller is not None else ""
        self._journal.append(
            Entry(
                day=_today(),
                owner=owner,
                model=self._model,
                prompt=stats.prompt_tokens,
                cached=stats.cached_tokens,
                generated=stats.generated_tokens,
            )
        )
        self._has_news = True
        label = self._label(owner)
        REQUESTS.labels(label).inc()
        for kind in ("prompt", "cached", "generated"):
            TOKENS.labels(label, kind).inc(getattr(stats, f"{kind}_tokens"))

    def close(self) -> None:
        """Add what is left to the database."""
        service.SERVED.pop(self._ledger.folder, None)
        self._has_ended.set()
        self._reader.join()
        self.read()
        self._ledger.forget(self._journal.close())

    @property
    def ledger(self) -> Ledger:
        """Return the ledger, for reports."""
        return self._ledger

    def read(self) -> None:
        """Add the journal's new entries to the database. Raises: OSError, sqlite3.Error"""
        with self._reading:
            self._has_news = False
            with self._lock:
                seconds, self._seconds = self._seconds, defaultdict(float)
            try:
                self._ledger.read(self._journal.paths(), seconds)
            except Exception:
                with self._lock:
                    for place, value in seconds.items():
                        self._seconds[place] += value
                self._has_news = True
                raise
            self._ledger.forget(self._journal.drop_full())

    def _read_on(self) -> None:
        """Read what is new until the end; what fails is tried again, and the log says why once."""
        number, has_failed = 0, False
        while not self._has_ended.wait(READ_PERIOD_S):
            number += 1
            try:
                if self._has_news:
                    self.read()
                if number % LOOK_PERIOD == 0:
                    self._ledger.read_abandoned()
                has_failed = False
            except Exception:
                if not has_failed:
                    logger.exception("accounts are not up to date; they are tried again")
                has_failed = True

    def _label(self, owner: str) -> str:
        """Return the owner's label in metrics. Mutates: self"""
        if owner not in self._labels and len(self._labels) < MAX_OWNERS:
            self._labels.add(owner)
        return owner if owner in self._labels else OTHER


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
