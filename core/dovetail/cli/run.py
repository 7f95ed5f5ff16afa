"""`dovetail run`: a server and a chat with it in one terminal; leaving ends both.

The server is a process of its own, so that its log stays out of the conversation and Ctrl-C out of
it. Knows of it only its address, its log file and its standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from dovetail.errors import ConfigError, DovetailError

HELP = "serve a model and chat with it in this terminal"
COMMON = frozenset(
    {
        "quick",
        "system_prompt",
        "max_tokens",
        "temperature",
        "port",
        "dtype",
        "quantization",
        "max_model_len",
        "tensor_parallel_size",
        "reasoning_parser",
    }
)
READY_PERIOD_S = 0.1
END_LIMIT_S = 15.0
TAIL_LINES = 10
LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on everywhere -> one of them to ask at."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add serve's flags and the conversation's. -q is chat's here. Mutates: parser."""
    from dovetail.cli.chat import add_talk_arguments
    from dovetail.cli.serve import add_arguments as add_serve_arguments
    from dovetail.config.flags import FlagAction

    add_serve_arguments(parser)
    parser.conflict_handler = "resolve"  # of this section alone: the others are there already
    add_talk_arguments(parser.add_argument_group("Conversation", "The chat"))
    for action in parser._actions:
        if isinstance(action, FlagAction) and action.flag.meta.short == "-q":
            meta = dataclasses.replace(action.flag.meta, short=None)
            action.flag = dataclasses.replace(action.flag, meta=meta)


def run(args: argparse.Namespace) -> int:
    """Serve, chat, end the server; return the exit status. Raises: ConfigError, ServerError."""
    from dovetail.config.asked import asked

    config = asked(args)
    _check(config)
    host, port = _free_place(config)
    fields = {name: config.value(name) for name in config.origins} | {"port": port}
    with Behind(fields, LOCAL.get(host, host), port) as server:
        status = server.wait_ready(config.model.model or "the demo model")
        return status if status is not None else _talk(args, server, config)


def _check(config: Any) -> None:
    """Raise ConfigError for ways to listen that the chat has no client for."""
    for name in ("uds", "ssl_certfile", "ssl_keyfile"):
        if config.is_given(name) and config.value(name):
            raise ConfigError(
                "run asks its server over plain HTTP.",
                where="--" + name.replace("_", "-"),
                fix="use `dovetail serve`, and `dovetail chat --url` beside it.",
            )


def _free_place(config: Any) -> tuple[str, int]:
    """Return host and port, a free one unless it was chosen. Raises: ConfigError if it is taken."""
    from dovetail.server.listen import bind

    port = config.frontend.port if config.is_given("port") else 0
    with bind(config.frontend.host, port) as sock:
        name = sock.getsockname()
        return str(name[0]), int(name[1])


def _talk(args: argparse.Namespace, server: Behind, config: Any) -> int:
    from dovetail.cli.chat import Chat, talk
    from dovetail.cli.client import Client, fields_of

    keys = config.frontend.api_key
    client = Client(server.url, keys[0] if keys else None)
    fields = fields_of(args, client.first_model())
    if args.quick is None:
        print(f"The server answers at {server.url} too; its log is {server.log}.")
    return talk(Chat(client, fields, args.system_prompt), args.quick)


class Behind:
    """The server's process. Use as a context manager, which ends it."""

    def __init__(self, fields: dict[str, Any], host: str, port: int) -> None:
        self.url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
        self._place = (host, port)
        handle, name = tempfile.mkstemp(prefix="dovetail-run-", suffix=".log")
        self.log = Path(name)
        with open(handle, "wb") as log:  # noqa: PTH123  (a descriptor)
            self._process = _start(log)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # wait_ready tells why it ended
            self._process.stdin.write(json.dumps(fields).encode() + b"\n")
            self._process.stdin.flush()

    def wait_ready(self, model: str) -> int | None:
        """Return None once it answers, or the status it ended with, its error shown."""
        line = _StatusLine(model, self.log)
        with contextlib.closing(line):
            while (status := self._process.poll()) is None:
                if self._is_ready():
                    return None
                line.update()
                time.sleep(READY_PERIOD_S)
        self._show_error()
        return status or 1

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(*self._place, timeout=1)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _show_error(self) -> None:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        starts = [i for i, text in enumerate(lines) if text.startswith("dovetail: error:")]
        for text in lines[starts[-1] :] if starts else lines[-TAIL_LINES:]:
            print(text, file=sys.stderr)
        print(f"the whole log is {self.log}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_LIMIT_S)
        except BaseException as error:  # Ctrl-C while it ends: it must not stay
            self._process.kill()
            self._process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        if not isinstance(reason[1], DovetailError) and self._process.returncode == 0:
            self.log.unlink(missing_ok=True)


def _start(log: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "dovetail.cli.behind"],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C belongs to the conversation
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


class _StatusLine:
    """What the server does while it loads, on one line that goes again. Nothing off a terminal."""

    def __init__(self, model: str, log: Path) -> None:
        self._model = model
        self._log = log
        self._is_shown = sys.stderr.isatty()
        self._began_s = time.monotonic()

    def update(self) -> None:
        """Show the time and the log's last message."""
        if self._is_shown:
            seconds = time.monotonic() - self._began_s
            text = f"loading {self._model}, {seconds:.0f} s: {_last_message(self._log)}"
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:width]}")
            sys.stderr.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _last_message(log: Path) -> str:
    """Return the last line of the log without time, level and name."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return lines[-1].rpartition(": ")[2] if lines else "starting"
