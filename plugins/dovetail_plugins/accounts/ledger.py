"""Ledger: the sums of all journals in one SQLite database, each entry exactly once.

The sums and the place up to which a journal has been read change in one transaction. So a process
that is killed at any moment neither loses an entry nor counts one twice: another process, or the
next one, reads on from that place. Several processes may write; each waits for the others.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from pathlib import Path

from dovetail_plugins.accounts.journal import Entry, abandoned, entries_after

FILE = "accounts.sqlite3"
WAIT_S = 30.0
"""How long a writer waits for another."""
_TABLES = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT, owner TEXT, model TEXT, requests INTEGER, prompt INTEGER, cached INTEGER,
    generated INTEGER, PRIMARY KEY (day, owner, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS device (
    day TEXT, model TEXT, seconds REAL, PRIMARY KEY (day, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journals (name TEXT PRIMARY KEY, place INTEGER) WITHOUT ROWID;
"""
_ADD_USAGE = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    requests = requests + excluded.requests, prompt = prompt + excluded.prompt,
    cached = cached + excluded.cached, generated = generated + excluded.generated
"""
_ADD_DEVICE = """
INSERT INTO device VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds
"""


class Ledger:
    """The database in a folder. Every call opens it, so any thread may make it."""

    def __init__(self, folder: Path) -> None:
        """Make the tables if need be. Raises: OSError, sqlite3.Error"""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        with closing(self.connect()) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_TABLES)

    def connect(self) -> sqlite3.Connection:
        """Return a connection, which the caller closes. Raises: sqlite3.Error"""
        return sqlite3.connect(self.folder / FILE, timeout=WAIT_S, isolation_level=None)

    def read(
        self, paths: Iterable[Path], seconds: Mapping[tuple[str, str], float] | None = None
    ) -> None:
        """Add the new entries of journals, and seconds of the device by day and model. Raises:
        OSError, sqlite3.Error, InvalidJson"""
        with closing(self.connect()) as db:
            db.execute("BEGIN IMMEDIATE")
            with db:
                for path in paths:
                    _read(db, path)
                rows = [(*place, value) for place, value in (seconds or {}).items()]
                db.executemany(_ADD_DEVICE, rows)

    def read_abandoned(self) -> None:
        """Add what ended processes left, and delete their journals. Raises: as `read`"""
        with abandoned(self.folder) as paths:
            if not paths:
                return
            self.read(paths)
            for path in paths:
                path.unlink()
            self.forget([path.name for path in paths])

    def forget(self, names: Collection[str]) -> None:
        """Forget the places of journals that are gone. Raises: sqlite3.Error"""
        if not names:
            return
        with closing(self.connect()) as db:
            db.executemany("DELETE FROM journals WHERE name = ?", [(name,) for name in names])


def _read(db: sqlite3.Connection, path: Path) -> None:
    """Add a journal's new entries, within a transaction."""
    found = db.execute("SELECT place FROM journals WHERE name = ?", (path.name,)).fetchone()
    place = found[0] if found else 0
    entries, end = entries_after(path, place)
    if end == place:
        return
    sums: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for entry in entries:
        _add(sums[entry.day, entry.owner, entry.model], entry)
    db.executemany(_ADD_USAGE, [(*place, *numbers) for place, numbers in sums.items()])
    db.execute("INSERT OR REPLACE INTO journals VALUES (?, ?)", (path.name, end))


def _add(numbers: list[int], entry: Entry) -> None:
    for index, value in enumerate((1, entry.prompt, entry.cached, entry.generated)):
        numbers[index] += value
