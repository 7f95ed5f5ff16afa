"""JoiningEngines: the engines of a server on other machines, from start to shutdown.

They are started by hand (`dovetail serve --headless`, `--join`) or by an EngineStarter. Their
JoinServer stays open: an engine may take the place of one that has ended or has not come yet, and
one that comes twice, or with other flags, gets an error message.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec

from dovetail.config.config import DEMO_ORIGIN, Config, flags
from dovetail.config.report.secrets import masked
from dovetail.config.rules.parallel import joining
from dovetail.config.rules.parallel.joining import Meeting
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.host import EngineHost
from dovetail.engine.faults import fault_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.engine_starter import EngineStarter, EnginesWanted, RemoteEngines
from dovetail.registry.files import import_target
from dovetail_plugins.joining.comparison import adopted, difference
from dovetail_plugins.joining.peers import (
    MAX_HANDSHAKES,
    POLL_PERIOD_S,
    JoinReply,
    JoinRequest,
    Peer,
    PeerListener,
)
from dovetail_plugins.joining.remote_engine import AbsentEngine, RemoteEngine

logger = logging.getLogger(__name__)

Join: TypeAlias = Callable[[int, EngineHost], object]
"""Takes the number of an engine that has joined late, and its host."""
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
OF_A_MACHINE = frozenset(
    {
        *("cpu_cores", "num_threads", "kv_cache_memory_bytes", "device", "socket_dir"),
        *("data_parallel_address", "data_parallel_rpc_port", "data_parallel_join_timeout"),
        *(one.name for one in dataclasses.fields(FrontendConfig)),
    }
)
"""Settings that say nothing to an engine of another machine."""


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
        self._is_alone = not num_processes
        self._hosts: dict[int, RemoteEngine] = {}
        self._join: Join | None = None
        self._early: list[int] = []
        self.settings: Mapping[str, Any] = {}
        sock = _listening(meeting)
        self.meeting = replace(meeting, port=sock.getsockname()[1])
        super().__init__(sock, meeting.secret, self.meeting.name, spec.elsewhere, num_processes + 1)

    def begin(self, *, needs_one: bool) -> list[RemoteEngine | AbsentEngine]:
        """Return a host for each engine: of those that have joined, and absent ones. Blocks until
        one has, if the server `needs_one`. Raises: ConfigError"""
        while True:
            with self._lock:
                if self._is_closed:
                    raise ConfigError("the start was given up.")
                if self._present() or not needs_one:
                    found = self.hosts_of(self._complete())
                    return [found.get(number) or AbsentEngine() for number in sorted(self.wanted)]
            time.sleep(POLL_PERIOD_S)

    def hosts_of(self, peers: Iterable[Peer]) -> dict[int, RemoteEngine]:
        """Return the hosts of engines that have joined, by number. Mutates: self"""
        found = {peer.request.number: RemoteEngine(peer) for peer in peers}
        self._hosts |= found
        return found

    def admit(self, join: Join) -> None:
        """Pass on engines that have joined since `begin` or `wait`, and later. Mutates: self"""
        with self._lock:
            self._join = join
            for number in self._early:
                join(number, self._hosts[number])

    def free(self) -> tuple[int, ...]:
        """Return the numbers of the engines that are not there, or have ended."""
        with self._lock:
            ended = {number for number, host in self._hosts.items() if host.has_ended}
            return tuple(sorted(self.wanted - (self._peers.keys() - ended)))

    def _forget_ended(self) -> None:
        """Make room for engines in place of those that have ended. Mutates: self"""
        with self._lock:
            for number, host in tuple(self._hosts.items()):
                if host.has_ended:
                    del self._hosts[number], self._peers[number]

    def _why_not(self, request: JoinRequest) -> ConfigError | None:
        self._forget_ended()
        refusal = super()._why_not(request)
        return self._full(request) if refusal is None and not self._has_room() else refusal

    def _has_room(self) -> bool:
        """Return whether an engine may join now: while several API processes run, none may."""
        return self._is_alone or not self._is_complete

    def _is_late(self) -> bool:
        return self._is_closed

    def _note_joined(self, peer: Peer) -> None:
        super()._note_joined(peer)
        if not self._is_complete:
            return
        ((number, host),) = self.hosts_of([peer]).items()
        if self._join is None:
            self._early.append(number)
        else:
            self._join(number, host)

    def _settings(self, request: JoinRequest) -> JoinReply:
        free = self.free()
        if not free or not self._has_room():
            return JoinReply(refusal=fault_of(self._full(request)))
        encoded = msgspec.msgpack.encode(dict(self.settings), enc_hook=str)
        return JoinReply(settings=encoded, free=free)

    def _full(self, request: JoinRequest) -> ConfigError:
        what = f"{request.name} has no place: {self.listed(self.wanted)} have joined."
        fix = "start the server with a larger --data-parallel-size."
        if not self._has_room():
            what = f"{request.name} is too late: the server has several API processes."
            fix = "start the server and all its engines again, or use one API process."
        return ConfigError(what, where="--join", fix=fix)

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
            meeting = joining.meeting_of(config.parallel)
            if num_processes and not meeting.limit_s:
                raise ConfigError(
                    "engines cannot join while several API processes run, so all are waited for.",
                    where="--data-parallel-join-timeout",
                    fix="give the seconds to wait, or use one API process.",
                )
            self._join_server = JoinServer(spec, meeting, num_processes)
            self._join_server.settings = sent_settings(config)

    def wait(self) -> Sequence[RemoteEngine | AbsentEngine]:
        """Return all engines once they have joined, or, with a join timeout of 0, now. Blocks.
        Raises: ConfigError"""
        with self._lock:
            if self._is_closed:
                raise ConfigError("the start was given up.")
            if self._target is not None:
                self._start(self._target)
        server = self._join_server
        assert server is not None
        if not server.meeting.limit_s and self._starter is None:
            return server.begin(needs_one=not self._spec.each())
        look = self._starter.look if self._starter is not None else None
        return list(server.hosts_of(server.wait(server.meeting.limit_s, look)).values())

    def admit(self, join: Join) -> None:
        """Let engines join later, in the places of those that are not there or have ended."""
        assert self._join_server is not None
        self._join_server.admit(join)

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


def settings_of(config: Config) -> dict[str, Any]:
    """Return the settings that the engines of other machines share with this server."""
    return {
        name: config.value(name)
        for name, origin in config.origins.items()
        if origin != DEMO_ORIGIN and name not in OF_THE_SERVER
    }


def sent_settings(config: Config) -> dict[str, Any]:
    """Return the settings for an engine that joins later. They travel unencrypted, so those with
    secrets are left out."""
    return {
        name: value
        for name, value in settings_of(config).items()
        if name not in OF_A_MACHINE and not flags()[name].meta.secret and masked(value) == value
    }


def fields_of(config: Config, meeting: Meeting) -> Mapping[str, Any]:
    """Return the settings for a process that runs engines of this server."""
    return settings_of(config) | {
        "headless": True,
        "data_parallel_address": meeting.host,
        "data_parallel_rpc_port": meeting.port,
        "data_parallel_secret": meeting.secret.decode(),
        "data_parallel_size": config.parallel.data_parallel_size,
    }
