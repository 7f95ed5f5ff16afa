"""The capabilities of models that no request has named, read once for each state of their files.

Reading takes up to a second for a large vocabulary, so a list waits only for so long; what is not
known by then is left out of it, and in the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import DovetailError
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.apis._capabilities import Capabilities
from dovetail_plugins.created_models.abilities import known_capabilities
from dovetail_plugins.created_models.store import CREATED
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.fleet import Fleet

BUDGET_S = 1.0
"""How long a list waits for capabilities that are not known."""
MAX_KNOWN = 1024
SETTINGS = (".json", ".jinja", ".model")
"""Endings of the files of a folder that capabilities depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A model: its name, where it lies, and its settings. `made_of` is what the settings depend on
    besides the files."""

    name: str
    path: Path
    config: Callable[[], Config]
    made_of: object = None


class KnownAbilities:
    """Capabilities by name and state of the files. Used by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[object, Capabilities | None] = OrderedDict()

    def of_all(self, wanted: Iterable[Wanted]) -> dict[str, Capabilities]:
        """Return what is known of these by name, after reading for a while. Mutates: self"""
        end_s = time.monotonic() + BUDGET_S
        found: dict[str, Capabilities] = {}
        with self._lock:
            for one in wanted:
                key = (one.name, repr(one.made_of), _identity(one.path))
                if key not in self._known and time.monotonic() < end_s:
                    self._put(key, _read(one.config))
                if (known := self._known.get(key)) is not None:
                    found[one.name] = known
        return found

    def _put(self, key: object, value: Capabilities | None) -> None:
        self._known[key] = value
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)


def _read(config: Callable[[], Config]) -> Capabilities | None:
    """Return what a model can do; None if its files do not show it."""
    try:
        settings = config()
        return known_capabilities(settings, resolve(settings))
    except (DovetailError, OSError):
        return None


def _identity(path: Path) -> tuple[object, ...]:
    """Return what changes whenever the files do."""
    try:
        files = [path] if path.is_file() else [f for f in path.glob("*") if f.suffix in SETTINGS]
        seen = sorted((file.name, file.stat()) for file in files)
    except OSError:  # it is being deleted
        return (path,)
    return (path, *((name, status.st_size, status.st_mtime_ns) for name, status in seen))


async def capabilities_by_name(fleet: Fleet, known: KnownAbilities) -> dict[str, Capabilities]:
    """Return what the files of models show, by name. Mutates: known"""
    of_fleet = {model.name: model.need.capabilities for model in fleet.models}
    found = {name: one for name, one in of_fleet.items() if one is not None}
    if (catalogue := fleet.catalogue) is None:
        return found
    wanted = [_of_store(catalogue, one) for one in await fleet.others() if not one.fault]
    return found | await asyncio.to_thread(known.of_all, wanted)


def _of_store(catalogue: Catalogue, model: StoredModel) -> Wanted:
    return Wanted(
        name=model.name,
        path=model.path,
        config=lambda: catalogue.entry(model).config,
        made_of=catalogue.created.get(model.name) if model.store == CREATED else None,
    )
