"""Which family of endpoints a path belongs to: chat, embeddings, files, ..."""

from __future__ import annotations

import re

from starlette.routing import compile_path
from starlette.types import Scope

from dovetail import registry
from dovetail.errors import ConfigError

MAX_KNOWN = 256


class Families:
    """The paths of the families that can be loaded here."""

    def __init__(self) -> None:
        self._names: dict[re.Pattern[str], str] = {}
        self._known: dict[str, str] = {}
        for name in registry.names("api"):
            try:
                routes = registry.load("api", name).routes
            except ConfigError:  # unavailable: it serves no paths here
                continue
            paths = (route.path for route in routes if route.path != "/")
            self._names |= {compile_path(path)[0]: name for path in paths}

    def of(self, scope: Scope) -> str:
        """Return the family of a request's path; "" if it is of none. Mutates: self"""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        found = self._known.get(path)
        if found is None:
            found = next((name for regex, name in self._names.items() if regex.match(path)), "")
            if len(self._known) < MAX_KNOWN:
                self._known[path] = found
        return found
