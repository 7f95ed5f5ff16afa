"""Elsewhere: the engines of a server that run on other machines, from start to shutdown.

They are started by hand (`dovetail serve --headless`) or by an EngineStarter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Self

from dovetail.config.config import DEMO_ORIGIN, Config
from dovetail.config.rules.parallel.joining import Meeting, meeting_at, meeting_of, starter_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.engine_starter import EngineStarter, EnginesWanted
from dovetail.joining.reception import Reception
from dovetail.joining.remote_engine import RemoteEngine
from dovetail.registry.files import import_target

logger = logging.getLogger(__name__)

OF_THE_SERVER = frozenset(
    {
        *("api_key", "api_server_count", "data_parallel_backend", "data_parallel_hybrid_lb"),
        *("data_parallel_rank", "data_parallel_size_local", "data_parallel_start_rank"),
    }
)
"""Settings of the server that are not passed to the processes that run its engines."""


class Elsewhere:
    """Starts engines on other machines and waits for them. Close it after they have ended."""

    def __init__(self, config: Config, spec: EngineSpec, *, num_processes: int = 0) -> None:
        """Start listening, unless an EngineStarter will start the engines. Each engine opens one
        connection to the main process and one to each of `num_processes` API processes. Raises:
        ConfigError"""
        self._config, self._spec, self._num_processes = config, spec, num_processes
        self._target = starter_of(config)
        self._starter: EngineStarter | None = None
        self._reception: Reception | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        if self._target is None:
            self._reception = self._opened(meeting_of(config))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> list[RemoteEngine]:
        """Return all engines once they have joined. Blocks. Raises: ConfigError"""
        with self._lock:
            if self._is_closed:
                raise ConfigError("the start was given up.")
            if self._target is not None:
                self._start(self._target)
        assert self._reception is not None
        return self._reception.wait(self._starter.look if self._starter is not None else None)

    def _start(self, target: str) -> None:
        """Start the engines through the EngineStarter. Raises: ConfigError. Mutates: self"""
        spec, run = self._spec, self._spec.run
        logger.info("%d engines are started elsewhere", len(spec.elsewhere))
        made = import_target(target)
        self._starter = made(
            EnginesWanted(
                numbers=spec.elsewhere,
                num_ranks=run.rank.world_size,
                device=run.device,
                num_threads=self._config.device.num_threads,
            )
        )
        self._reception = self._opened(meeting_at(self._config, self._starter.host))
        self._starter.start(fields_of(self._config, self._reception.meeting))

    def _opened(self, meeting: Meeting) -> Reception:
        return Reception(self._spec, meeting, num_processes=self._num_processes)

    def end_wait(self) -> None:
        """Accept no more engines and end a running `wait`. Started engines keep running."""
        with self._lock:
            self._is_closed = True
            if self._reception is not None:
                self._reception.close()

    def close(self) -> None:
        """End the wait and the processes that the EngineStarter started. May be called twice."""
        self.end_wait()
        if self._starter is not None:
            self._starter.close()


def fields_of(config: Config, meeting: Meeting) -> Mapping[str, Any]:
    """Return the settings for a process that runs engines of this server."""
    given = {
        name: config.value(name)
        for name, origin in config.origins.items()
        if origin != DEMO_ORIGIN and name not in OF_THE_SERVER
    }
    return given | {
        "headless": True,
        "data_parallel_address": meeting.host,
        "data_parallel_rpc_port": meeting.port,
        "data_parallel_secret": meeting.secret.decode(),
        "data_parallel_size": config.parallel.data_parallel_size,
    }
