"""AdapterResolver: finds an adapter that a request names and that is not loaded yet.

It is asked in the API process, for names that clients write; what it finds the engine loads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dovetail.interfaces.adapter_spec import AdapterSource
from dovetail.interfaces.plugin import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverFacts:
    """What stays as it is while the server runs: the names that an adapter may have for the served
    model, and the folder that the model lies in."""

    base_names: Sequence[str]
    model_path: str

    def fits(self, base: str) -> bool:
        """Return whether an adapter that was made for a model of this name (or folder) was made for
        the served one."""
        if not base or base in self.base_names:
            return bool(base)
        return Path(base).expanduser().resolve() == Path(self.model_path).resolve()


class AdapterResolver(Plugin):
    """One object per API process, called in threads, one call at a time per name.

    The name is what a client sent as `model`: any text, `../../etc` among it. A resolver that
    raises RequestError ends the request with it, any other error is logged and counts as not found.
    """

    interface_version: ClassVar[int] = 1

    @classmethod
    def sample_options(cls, folder: Path) -> Mapping[str, Any]:
        """Return options with which it finds the adapters in the subfolders of a folder, by their
        names: for the conformance kit, which lays "poems" and others there. A resolver that asks
        somewhere else may copy them there, or return what makes it answer as if it had."""
        return {}

    @abstractmethod
    def __init__(self, options: Any, facts: ResolverFacts) -> None:
        """Prepare to be asked. Raises: ConfigError for options that cannot work"""

    @abstractmethod
    def find(self, name: str) -> AdapterSource | None:
        """Return the adapter of this name, its `path` a folder of this machine; None where there is
        none. It may take its time, for a download say."""
