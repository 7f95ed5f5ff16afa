"""BackgroundServer: the server process of `dovetail run` and `dovetail launch`, start to end.

It is a separate process, so that its log does not appear in the conversation and Ctrl-C does not
reach it. Only its address and its log file are known here.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from dovetail.errors import ConfigError, DovetailError
from dovetail.processes.process import Child, spawn
from dovetail_plugins.commands._client import BROKEN, send_request

if TYPE_CHECKING:
    from dovetail.config.config import Config

LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Wildcard listen addresses -> a local address to connect to."""
READY_PERIOD_S = 0.1
END_LIMIT_S = 15.0
KILL_WAIT_S = 2.0
TAIL_LINES = 10


class BackgroundServer:
    """The server's process. It is a context manager that ends the process at exit."""

    def __init__(self, fields: dict[str, Any], host: str, port: int) -> None:
        self.url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
        handle, name = tempfile.mkstemp(prefix="dovetail-run-", suffix=".log")
        self.log = Path(name)
        try:
            self._child = _spawn(fields, handle)
        except DovetailError:
            self.log.unlink()
            raise

    def wait_ready(self, model: str) -> int | None:
        """Return None once it answers. If it ends first, show its error and return the exit
        status."""
        line = _StatusLine(model, self.log)
        with contextlib.closing(line):
            while (status := self._child.status) is None:
                if self._is_ready():
                    return None
                line.update()
                time.sleep(READY_PERIOD_S)
        self._show_error()
        return status or 1

    def _is_ready(self) -> bool:
        server = urlsplit(self.url)
        try:
            with send_request(server, "GET", "/ready", limits_s=(1.0, 1.0)) as response:
                return response.status == 200
        except BROKEN:
            return False

    def _show_error(self) -> None:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        starts = [i for i, text in enumerate(lines) if text.startswith("dovetail: error:")]
        for text in lines[starts[-1] :] if starts else lines[-TAIL_LINES:]:
            print(text, file=sys.stderr)
        print(f"the whole log is {self.log}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._child.send_signal(
            signal.SIGTERM
        )  # it ends gracefully; closing the parent's pipe would end it immediately
        try:
            self._child.wait(END_LIMIT_S)
        finally:
            status = self._child.end(KILL_WAIT_S)
        if not isinstance(reason[1], DovetailError) and status == 0:
            self.log.unlink(missing_ok=True)


def server_of(config: Config) -> BackgroundServer:
    """Return a server of this config, which starts. Raises: ConfigError"""
    _check(config)
    host, port = _free_place(config)
    fields = {name: config.value(name) for name in config.origins} | {"port": port}
    return BackgroundServer(fields, LOCAL.get(host, host), port)


def _check(config: Config) -> None:
    """Raise ConfigError for listen settings that the client does not support."""
    for name in ("uds", "ssl_certfile", "ssl_keyfile"):
        if config.is_given(name) and config.value(name):
            raise ConfigError(
                "this command starts only servers of plain HTTP over TCP.",
                where="--" + name.replace("_", "-"),
                fix="use `dovetail serve`, and `dovetail chat --url` or `dovetail launch --url` "
                "beside it.",
            )


def _free_place(config: Config) -> tuple[str, int]:
    """Return (host, port); a free port unless one was given. Raises: ConfigError if it is taken"""
    from dovetail.server.launch.sockets import bind

    port = config.frontend.port if config.is_given("port") else 0
    with bind(config.frontend.host, port) as sock:
        name = sock.getsockname()
        return str(name[0]), int(name[1])


def _spawn(fields: dict[str, Any], handle: int) -> Child:
    """Start the server with its output in an open file, outside the terminal's foreground group:
    Ctrl-C is for the conversation."""
    with open(handle, "wb") as log:
        return spawn(
            "dovetail_plugins.commands._server_child",
            fields,
            stdout=log,
            stderr=log,
            has_own_group=True,
        )


class _StatusLine:
    """A status line while the server loads, erased at the end. Only on a terminal."""

    def __init__(self, model: str, log: Path) -> None:
        self._model = model
        self._log = log
        self._is_shown = sys.stderr.isatty()
        self._began_s = time.monotonic()

    def update(self) -> None:
        """Show the elapsed time and the log's last message."""
        if self._is_shown:
            seconds = time.monotonic() - self._began_s
            text = f"loading {self._model}, {seconds:.0f} s: {_last_message(self._log)}"
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:width]}")
            sys.stderr.flush()

    def close(self) -> None:
        """Erase the line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _last_message(log: Path) -> str:
    """Return the last line of the log, without time, level and name."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return lines[-1].rpartition(": ")[2] if lines else "starting"
