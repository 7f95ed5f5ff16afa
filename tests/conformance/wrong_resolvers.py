"""Resolvers for the conformance kit: a right one, and others that each break one clause."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.interfaces.adapter_resolver import AdapterResolver, ResolverFacts
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.plugin import Info


@dataclass(frozen=True, kw_only=True)
class _Options:
    place: str = field(default="", metadata={"help": "folder of the adapters"})


class RightResolver(AdapterResolver):
    """Knows the names that lie in its folder; the others derive from it."""

    info = Info(summary="a listed folder")
    Options = _Options

    @classmethod
    def sample_options(cls, folder: Path) -> Mapping[str, Any]:
        """Return the folder."""
        return {"place": str(folder)}

    def __init__(self, options: Any, facts: ResolverFacts) -> None:
        self.place, self.facts = Path(options.place), facts

    def find(self, name: str) -> AdapterSource | None:
        """Return the adapter of a name."""
        return self.adapter(name) if name in {path.name for path in self.place.iterdir()} else None

    def adapter(self, name: str) -> AdapterSource | None:
        """Return the adapter in a folder, if its base fits."""
        folder = self.place / name
        config = json.loads((folder / "adapter_config.json").read_text())
        fits = self.facts.fits(config["base_model_name_or_path"])
        return AdapterSource(name=name, path=str(folder)) if fits else None


class TrustingResolver(RightResolver):
    """Takes a name for a path, wherever it leads."""

    info = Info(summary="any path")

    def find(self, name: str) -> AdapterSource | None:
        """Return what lies there."""
        is_there = bool(name.strip("/.")) and "\0" not in name and len(name) < 99
        try:
            return self.adapter(name) if is_there else None
        except (OSError, ValueError):
            return None


class IndifferentResolver(RightResolver):
    """Does not look at the base."""

    info = Info(summary="any base")

    def adapter(self, name: str) -> AdapterSource | None:
        """Return the adapter in a folder."""
        return AdapterSource(name=name, path=str(self.place / name))


class RaisingResolver(RightResolver):
    """Raises for names that are not there."""

    info = Info(summary="raises")

    def find(self, name: str) -> AdapterSource | None:
        """Return the adapter of a name. Raises: KeyError"""
        if name.startswith("nothing"):
            raise KeyError(name)
        return super().find(name)


class RenamingResolver(RightResolver):
    """Gives what it finds a name of its own."""

    info = Info(summary="renames")

    def adapter(self, name: str) -> AdapterSource | None:
        """Return the adapter under another name."""
        found = super().adapter(name)
        return found and AdapterSource(name=f"{name}-v2", path=found.path)


class SharedResolver(RightResolver):
    """Keeps the name that it looks for where other threads change it."""

    info = Info(summary="one name at a time")

    def find(self, name: str) -> AdapterSource | None:
        """Return the adapter of whichever name was asked for last."""
        self.name = name
        time.sleep(0.002)
        return super().find(self.name)


class ScribblingResolver(RightResolver):
    """Leaves a note in the folder."""

    info = Info(summary="leaves notes")

    def find(self, name: str) -> AdapterSource | None:
        """Return the adapter of a name."""
        if name.isidentifier() and len(name) < 99:
            (self.place / f".{name}.seen").touch()
        return super().find(name)
