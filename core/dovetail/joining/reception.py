"""Reception: the listening socket at which engines of other machines join a server.

It stays open as long as the server, so that an engine that comes too late, twice, or with other
flags gets an error message.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from dovetail.config.rules.parallel.joining import ADDRESS, PORT, Meeting
from dovetail.engine.faults import fault_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.joining.comparison import adopted, difference
from dovetail.joining.messages import CONTROL, Hello, Welcome
from dovetail.joining.remote_engine import RemoteEngine
from dovetail.observability.supervise import supervised_thread
from dovetail.processes.handshake import (
    HELLO_LIMIT_S,
    challenge,
    make_lasting,
    receive_message,
    send_message,
)
from dovetail.processes.wake import WakeSignal
from dovetail.version import __version__

logger = logging.getLogger(__name__)

LOOK_PERIOD_S = 0.2
MAX_GREETED = 64
"""Maximum number of handshakes at the same time."""
TELL_PERIOD_S = 10.0
SAME = "give every machine the same version of dovetail and the same flags."


@dataclass(slots=True)
class _Guest:
    """An engine that is opening its connections."""

    hello: Hello
    connections: dict[int, socket.socket] = field(default_factory=dict)

    def close(self) -> None:
        """Close the connections opened so far."""
        for connection in self.connections.values():
            connection.close()

    def has_left(self) -> bool:
        """Return whether its first connection has closed; nothing is sent on it before Start."""
        try:
            self.connections[CONTROL].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


class Reception:
    """A listening socket, and the engines that have joined. Close it when the server ends."""

    def __init__(self, spec: EngineSpec, meeting: Meeting, *, num_processes: int) -> None:
        """Listen for the engines that `spec` expects on other machines. Each opens a connection to
        the main process and to each of `num_processes` API processes. Raises: ConfigError"""
        self._wanted = frozenset(spec.elsewhere)
        self._reference, self._knows_device = spec, bool(spec.each())
        self._num_connections = num_processes + 1
        self._guests: dict[int, _Guest] = {}
        self._has_started = False
        self._is_closed = False
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_GREETED)
        self._socket = _listening(meeting)
        self.meeting = self._meeting = replace(meeting, port=self._socket.getsockname()[1])
        self._socket.setblocking(False)
        self._is_over = WakeSignal()
        self._thread = supervised_thread("reception", self._accept, is_over=self._is_over)
        self._thread.start()

    def __enter__(self) -> Reception:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accept no more engines and end a running `wait`. Started engines keep running."""
        with self._lock:
            self._is_closed = True
            guests = [] if self._has_started else list(self._guests.values())
            self._guests.clear()
        self._is_over.set()
        self._thread.join()
        self._is_over.close()
        self._socket.close()
        for guest in guests:
            guest.close()

    def wait(self, look: Callable[[], None] | None = None) -> list[RemoteEngine]:
        """Return all engines once they have joined. Blocks; calls `look` meanwhile.

        Raises: ConfigError if they do not join in time or this is closed; whatever `look` raises
        """
        deadline_s = time.monotonic() + self._meeting.limit_s
        told_s = time.monotonic()
        logger.info("waiting for %s at %s", _listed(self._wanted), self._meeting.name)
        while True:
            if (guests := self._complete()) is not None:
                return [
                    RemoteEngine(guest.hello, _in_order(guest))
                    for _, guest in sorted(guests.items())
                ]
            if look is not None:
                look()
            now_s = time.monotonic()
            if self._is_closed or now_s > deadline_s:
                raise self._not_all()
            if now_s - told_s > TELL_PERIOD_S:
                told_s = now_s
                logger.info("%s", self._not_all().what)
            time.sleep(LOOK_PERIOD_S / 4)

    def _complete(self) -> dict[int, _Guest] | None:
        """Return the engines if all have joined. Engines that have disconnected are removed."""
        with self._lock:
            for number, guest in list(self._guests.items()):
                if guest.has_left():
                    logger.warning("%s has gone again", guest.hello.name)
                    self._guests.pop(number).close()
            if self._is_closed or self._present() != self._wanted:
                return None
            self._has_started = True
            return dict(self._guests)

    def _present(self) -> frozenset[int]:
        count = self._num_connections + 1
        return frozenset(n for n, guest in self._guests.items() if len(guest.connections) == count)

    def _not_all(self) -> ConfigError:
        present = self._present()
        missing = self._wanted - present
        have = "has" if len(missing) == 1 else "have"
        return ConfigError(
            f"{len(present)} of {len(self._wanted)} engines of other machines have joined at "
            f"{self._meeting.name}, and {_listed(missing)} {have} not, within "
            f"{self._meeting.limit_s:g} s.",
            where=ADDRESS,
            fix="see the log lines on their machines, and check that these reach this address.",
        )

    def _accept(self) -> None:
        """Accept connections; handshake each in its own thread."""
        while self._is_over.wait_for(self._socket):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:  # the client has disconnected already
                continue
            except OSError as error:  # too many open files, for example
                logger.warning("an engine could not come in: %s", error)
                time.sleep(LOOK_PERIOD_S)
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()
            except RuntimeError as error:  # too many threads, for example
                logger.warning("an engine could not come in: %s", error)
                connection.close()
                self._places.release()

    def _greet(self, connection: socket.socket) -> None:
        """Handshake a connection, then accept or refuse it."""
        try:
            connection.settimeout(HELLO_LIMIT_S)
            challenge(connection, self._meeting.secret)
            hello = receive_message(connection, Hello)
            refusal = self._why_not(hello)
            if refusal is None:
                make_lasting(connection)
                refusal = self._take(hello, connection)
            if refusal is not None:
                logger.warning("%s may not join: %s", hello.name, refusal)
                send_message(connection, Welcome(refusal=fault_of(refusal)))
                connection.close()
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            logger.debug("a stranger came, or somebody went again: %s", error)
            connection.close()
        finally:
            self._places.release()

    def _why_not(self, hello: Hello) -> ConfigError | None:
        """Return why an engine is refused, or None."""
        if hello.version != __version__:
            what = f"{hello.name} runs dovetail {hello.version}, and the server {__version__}."
            return ConfigError(what, where=ADDRESS, fix=SAME)
        with self._lock:
            known = self._guests.get(hello.engine)
        if known is not None and known.hello.launch != hello.launch:
            return ConfigError(
                f"engine {hello.engine} has joined already: {known.hello.name}.",
                where="--data-parallel-start-rank",
                fix="give each machine other numbers of engines.",
            )
        if hello.engine not in self._wanted:
            return ConfigError(
                f"the server waits for {_listed(self._wanted)} of other machines, and not for "
                f"{hello.name}.",
                where="--data-parallel-start-rank",
                fix="begin where the server's own engines, --data-parallel-size-local, end.",
            )
        return self._compared(hello) if hello.connection == CONTROL else None

    def _compared(self, hello: Hello) -> ConfigError | None:
        """Return how an engine's spec differs from those of the others, or None. Mutates: self"""
        with self._lock:
            knows = self._knows_device
            found = difference(self._reference, hello.spec, hello.name, knows_device=knows)
            if found is None and not knows:
                self._reference, self._knows_device = adopted(self._reference, hello.spec), True
            return found

    def _take(self, hello: Hello, connection: socket.socket) -> ConfigError | None:
        """Accept and store a connection, or return why it is refused. Raises: OSError. Mutates:
        self"""
        with self._lock:
            guest = self._guests.get(hello.engine)
            if guest is None and hello.connection == CONTROL:
                guest = _Guest(hello)
            is_late = self._has_started or self._is_closed
            if guest is None or guest.hello.launch != hello.launch or is_late:
                return ConfigError(
                    f"engine {hello.engine} has joined already, or the server is ending.",
                    where=ADDRESS,
                    fix="start the server and the engines of every machine again.",
                )
            # Sent before it is stored: once all are, the engine's own messages travel on it.
            send_message(connection, Welcome(num_connections=self._num_connections))
            guest.connections[hello.connection] = connection
            self._guests[hello.engine] = guest
            if len(guest.connections) == self._num_connections + 1:
                logger.info("%s has joined", hello.name)
        return None


def _in_order(guest: _Guest) -> list[socket.socket]:
    return [guest.connections[number] for number in sorted(guest.connections)]


def _listed(numbers: Sequence[int] | frozenset[int]) -> str:
    """Return engine numbers as text."""
    shown = ", ".join(map(str, sorted(numbers)))
    return f"engine {shown}" if len(numbers) == 1 else f"the engines {shown}"


def _listening(meeting: Meeting) -> socket.socket:
    """Return a socket that listens at this address. Raises: ConfigError"""
    try:
        family, *_, address = socket.getaddrinfo(
            meeting.host, meeting.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=MAX_GREETED)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"the port {meeting.port} is in use, perhaps by another server that waits for "
                "engines.",
                where=PORT,
                fix="stop the other program, or give another port on every machine.",
            ) from error
        raise ConfigError(
            f"cannot listen at {meeting.name}: {error}.",
            where=ADDRESS,
            fix="give an address of the machine that serves.",
        ) from error
