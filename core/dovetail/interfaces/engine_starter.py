"""RemoteEngines: the engines of a server on other machines; EngineStarter: what starts them.

The value of the default `data_parallel_backend` plugin is a RemoteEngines, that of any other an
EngineStarter. Each engine runs in a process like that of `dovetail serve --headless`, which
connects to the server by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesWanted:
    """Engines to start: their `numbers`, the ranks of each, the device they compute on, and the
    threads of a rank on a CPU (None: as many as fit)."""

    numbers: tuple[int, ...]
    num_ranks: int
    device: str
    num_threads: int | None


class RemoteEngines(ABC):
    """All engines of one server on other machines. A context manager, which closes it."""

    @abstractmethod
    def __init__(self, config: Any, spec: Any, *, num_processes: int = 0) -> None:
        """Expect the engines that an EngineSpec lists as `elsewhere`. Users start them, or the
        EngineStarter that the Config names. Each opens a connection to the main process and one to
        each of `num_processes` API processes. Raises: ConfigError"""

    @abstractmethod
    def wait(self) -> Sequence[Any]:
        """Return the EngineHost of each engine once all have joined, or, if they need not, now.
        Blocks. Raises: ConfigError"""

    @abstractmethod
    def admit(self, join: Callable[[int, Any], object]) -> None:
        """Let engines join later in the places of those that are not there or have ended. `join`
        takes an engine's number and its EngineHost, in any thread."""

    @abstractmethod
    def end_wait(self) -> None:
        """Accept no more engines and end a running `wait`. Started engines keep running."""

    @abstractmethod
    def close(self) -> None:
        """End the wait and release all resources, after the engines' end. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
