"""EngineStarter: who starts the engines of a server elsewhere, the value of a
`data_parallel_backend` plugin.

Each engine is run by a process like that of `dovetail serve --headless`, which comes to the
server's door by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesWanted:
    """Engines that are to be started: their `numbers`, the ranks of each, the device they compute
    on, and the threads of a rank on a CPU (None: as many as there is room for)."""

    numbers: tuple[int, ...]
    num_ranks: int
    device: str
    num_threads: int | None


class EngineStarter(ABC):
    """The engines of one server. Made in the server's process; its methods may block."""

    @abstractmethod
    def __init__(self, wanted: EnginesWanted) -> None:
        """Reserve places for the engines. Raises: ConfigError when there are not enough"""

    @property
    @abstractmethod
    def host(self) -> str:
        """Return the address of this machine by which the engines' machines reach it."""

    @abstractmethod
    def start(self, fields: Mapping[str, Any]) -> None:
        """Start all engines. `fields` are the settings of the processes that run them, but for the
        numbers of a machine's engines. Raises: ConfigError"""

    @abstractmethod
    def look(self) -> None:
        """Raise ConfigError when an engine has ended before the server had all. Cheap."""

    @abstractmethod
    def close(self) -> None:
        """End what still runs and give the places back. May be called twice."""
