"""JoiningEngines: the engines of a server on other machines, from start to shutdown.

They are started by hand (`dovetail serve --headless`) or by an EngineStarter. Their JoinServer
stays open, so that an engine that comes too late, twice, or with other flags gets an error message.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.config.config import DEMO_ORIGIN, Config
from dovetail.config.rules.parallel import joining
from dovetail.config.rules.parallel.joining import Meeting
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.engine_starter import EngineStarter, EnginesWanted, RemoteEngines
from dovetail.registry.files import import_target
from dovetail_plugins.joining.comparison import adopted, difference
from dovetail_plugins.joining.peers import MAX_HANDSHAKES, JoinRequest, PeerListener
from dovetail_plugins.joining.remote_engine import RemoteEngine

logger = logging.getLogger(__name__)

OF_THE_SERVER = frozenset(
    {
        *(
            "api_key",
            "api_keys_file",
            "api_server_count",
            "data_parallel_backend",
            "data_parallel_hybrid_lb",
        ),
        *("data_parallel_rank", "data_parallel_size_local", "data_parallel_start_rank"),
    }
)
"""Settings of the server that are not passed to the processes that run its engines."""


class JoinServer(PeerListener):
    """Accepts the engines of other machines. Close it when the server ends."""

    kind = "engine"
    address_flag = joining.ADDRESS
    number_flag = "--data-parallel-start-rank"
    number_fix = f"set {number_flag} to the server's --data-parallel-size-local, or a later number."

    def __init__(self, spec: EngineSpec, meeting: Meeting, num_processes: int) -> None:
        """Listen for the engines that `spec` expects on other machines. Each opens a connection to
        the main process and to each of `num_processes` API processes. Raises: ConfigError"""
        self._reference, self._knows_device = spec, bool(spec.each())
        sock = _listening(meeting)
        self.meeting = replace(meeting, port=sock.getsockname()[1])
        super().__init__(sock, meeting.secret, self.meeting.name, spec.elsewhere, num_processes + 1)

    def _compared(self, request: JoinRequest) -> ConfigError | None:
        """Return how an engine's spec differs, or None. Mutates: self, by the first one's device"""
        knows = self._knows_device
        found = difference(self._reference, request.facts, request.name, knows_device=knows)
        if found is None and not knows:
            self._reference, self._knows_device = adopted(self._reference, request.facts), True
        return found


class JoiningEngines(RemoteEngines):
    """Starts engines on other machines and waits for them. Close it after they have ended."""

    def __init__(self, config: Config, spec: EngineSpec, *, num_processes: int = 0) -> None:
        """Start listening, unless an EngineStarter will start the engines. Raises: ConfigError"""
        self._config, self._spec, self._num_processes = config, spec, num_processes
        self._target = joining.starter_of(config.parallel)
        self._starter: EngineStarter | None = None
        self._join_server: JoinServer | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        if self._target is None:
            self._join_server = JoinServer(spec, joining.meeting_of(config.parallel), num_processes)

    def wait(self) -> list[RemoteEngine]:
        """Return all engines once they have joined. Blocks. Raises: ConfigError"""
        with self._lock:
            if self._is_closed:
                raise ConfigError("the start was given up.")
            if self._target is not None:
                self._start(self._target)
        assert self._join_server is not None
        look = self._starter.look if self._starter is not None else None
        peers = self._join_server.wait(self._join_server.meeting.limit_s, look)
        return [RemoteEngine(peer) for peer in peers]

    def _start(self, target: str) -> None:
        """Start the engines through the EngineStarter. Raises: ConfigError. Mutates: self"""
        spec, run = self._spec, self._spec.run
        logger.info("%d engines are started elsewhere", len(spec.elsewhere))
        starter_class = import_target(target)
        self._starter = starter_class(
            EnginesWanted(
                numbers=spec.elsewhere,
                num_ranks=run.rank.world_size,
                device=run.device,
                num_threads=self._config.device.num_threads,
            )
        )
        meeting = joining.meeting_at(self._config.parallel, self._starter.host)
        self._join_server = JoinServer(spec, meeting, num_processes=self._num_processes)
        self._starter.start(fields_of(self._config, self._join_server.meeting))

    def end_wait(self) -> None:
        """Accept no more engines and end a running `wait`. Started engines keep running."""
        with self._lock:
            self._is_closed = True
            if self._join_server is not None:
                self._join_server.close()

    def close(self) -> None:
        """End the wait and the processes that the EngineStarter started. May be called twice."""
        self.end_wait()
        if self._starter is not None:
            self._starter.close()


def _listening(meeting: Meeting) -> socket.socket:
    """Return a socket that listens at this address. Raises: ConfigError"""
    try:
        family, *_, address = socket.getaddrinfo(
            meeting.host, meeting.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=MAX_HANDSHAKES)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"the port {meeting.port} is in use, perhaps by another server that waits for "
                "engines.",
                where=joining.PORT,
                fix="stop the other program, or give another port on every machine.",
            ) from error
        raise ConfigError(
            f"cannot listen at {meeting.name}: {error}.",
            where=joining.ADDRESS,
            fix="give an address of the machine that serves.",
        ) from error


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
