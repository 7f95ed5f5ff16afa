"""Entry: one registered plugin as metadata, and its possible states. Imports no plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BUILT_IN = "dovetail-llm"
"""The distribution whose entries are dovetail's own."""

Origin = Literal["installed", "checkout", "file", "path", "register", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A plugin's name, its distribution, and its target.

    `target` is "package.module:attribute" or "/path/file.py:attribute".
    """

    kind: str
    name: str
    distribution: str
    target: str
    origin: Origin = "installed"

    @property
    def id(self) -> str:
        """Return name@distribution, which is never ambiguous."""
        return f"{self.name}@{self.distribution}"

    @property
    def is_own(self) -> bool:
        """Return whether dovetail itself ships the plugin."""
        return self.distribution == BUILT_IN

    @property
    def module(self) -> str:
        """Return the module or file part of the target."""
        return self.target.rpartition(":")[0]

    @property
    def attribute(self) -> str:
        """Return the attribute part of the target."""
        return self.target.rpartition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """An entry's state: whether it can be selected. `reason` is empty when the word is "ok"."""

    word: Literal["ok", "unavailable", "broken"]
    reason: str = ""
