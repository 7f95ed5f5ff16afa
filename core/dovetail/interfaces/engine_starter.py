"""EngineStarter: starts a server's engines on other machines; the value of a
`data_parallel_backend` plugin.

Each engine runs in a process like that of `dovetail serve --headless`, which connects to the server
by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesWanted:
    """Engines to start: their `numbers`, the ranks of each, the device they compute on, and the
    threads of a rank on a CPU (None: as many as fit)."""

    numbers: tuple[int, ...]
    num_ranks: int
    device: str
    num_threads: int | None


class EngineStarter(ABC):
    """The remote engines of one server. Created in the server's process; its methods may block."""

    @abstractmethod
    def __init__(self, wanted: EnginesWanted) -> None:
        """Reserve resources for the engines. Raises: ConfigError when there are not enough"""

    @property
    @abstractmethod
    def host(self) -> str:
        """Return the address at which the engines' machines can reach this one."""

    @abstractmethod
    def start(self, fields: Mapping[str, Any]) -> None:
        """Start all engines. `fields` are the settings of their processes, except for the numbers
        of each machine's engines. Raises: ConfigError"""

    @abstractmethod
    def look(self) -> None:
        """Raise ConfigError when an engine has ended before all have joined the server. Cheap."""

    @abstractmethod
    def close(self) -> None:
        """End what still runs and release the resources. May be called twice."""
