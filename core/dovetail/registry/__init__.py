"""The registry of this process, which resolves a name to a plugin class, as functions.

`names`, `entries` and `find` read only metadata; `load`, `choose`, `make` and `status` import the
one requested plugin. `admin` has what dovetail's own start-up, commands, docs and tests need too.
"""

from __future__ import annotations

from dovetail.moved import attributes
from dovetail.registry import admin
from dovetail.registry.entry import Entry, Status
from dovetail.registry.files import register
from dovetail.registry.kinds import KINDS, Kind
from dovetail.registry.registry import default

__all__ = [
    "KINDS", "Entry", "Kind", "Status", "admin", "choose", "entries", "find", "load", "make",
    "names", "register", "status",
]  # fmt: skip

names = default.catalog.names
entries = default.catalog.entries
find = default.catalog.find
load = default.load
choose = default.choose
make = default.make
status = default.status

__getattr__ = attributes(__name__)
