"""AdapterResolver: finds an adapter that a request names and that is not loaded yet.

It runs in the API process, on names that clients send; the engine loads what it finds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.plugin import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolverFacts:
    """Facts that do not change while the server runs: the base model names that an adapter for the
    served model may state, and the model's folder."""

    base_names: Sequence[str]
    model_path: str

    def fits(self, base: str) -> bool:
        """Return whether `base`, the model name or folder that an adapter was made for, is the
        served model."""
        if not base or base in self.base_names:
            return bool(base)
        return Path(base).expanduser().resolve() == Path(self.model_path).resolve()


class AdapterResolver(Plugin):
    """One object per API process, called in threads, one call at a time per name.

    The name is what a client sent as `model`: arbitrary text, possibly `../../etc`. A RequestError
    from a resolver ends the request; any other error is logged and counts as not found.
    """

    interface_version: ClassVar[int] = 1

    @classmethod
    def sample_options(cls, folder: Path) -> Mapping[str, Any]:
        """Return options with which it finds the adapters in the subfolders of a folder, by name.
        The conformance kit puts "poems" and others there. A resolver that searches elsewhere may
        copy them there, or return options that make it behave as if it had."""
        return {}

    @abstractmethod
    def __init__(self, options: Any, facts: ResolverFacts) -> None:
        """Prepare to search. Raises: ConfigError for options that cannot work"""

    @abstractmethod
    def find(self, name: str) -> AdapterSource | None:
        """Return the adapter of this name, with `path` a folder on this machine, or None if there
        is none. It may be slow, for example to download."""
