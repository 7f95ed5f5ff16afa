"""How `dovetail launch` runs a program: its folder, its files, its variables, its signals."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

from dovetail.errors import DovetailError, PluginError
from dovetail.interfaces.client import ClientProgram, LaunchTarget
from dovetail.processes.own_folder import own_folder
from dovetail_plugins.commands._server_process import LOCAL
from dovetail_plugins.state_folder import state_folder

END_OF_FILE = "END_OF_FILE"


def folder_of(client: ClientProgram, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that launched programs of this name have to themselves."""
    return state_folder(environ) / "clients" / client.program


def base_of(url: str) -> str:
    """Return the address without a final slash and /v1, and one that can be connected to."""
    parts = urlsplit(url)
    host = LOCAL.get(parts.hostname or "")
    if host is not None:
        shown = f"[{host}]" if ":" in host else host
        port = "" if parts.port is None else f":{parts.port}"
        parts = parts._replace(netloc=shown + port)
    return parts.geturl().rstrip("/").removesuffix("/v1").rstrip("/")


def run_program(
    client: ClientProgram, program: str, target: LaunchTarget, arguments: Sequence[str]
) -> int:
    """Write the program's files, run it to its end, and return its exit status; 128 and the number
    for one that a signal ended. Raises: DovetailError, PluginError"""
    settings = client.settings(target)
    _write(client, target.folder, settings.files)
    words = [program, *settings.arguments, *arguments]
    with _signals_for_the_program():
        status = subprocess.run(words, env=os.environ | dict(settings.env)).returncode
    return status if status >= 0 else 128 - status


def script(client: ClientProgram, target: LaunchTarget, arguments: Sequence[str]) -> str:
    """Return commands of a POSIX shell that do what `run_program` does."""
    settings = client.settings(target)
    lines = []
    for name, text in settings.files.items():
        path = _place(client, target.folder, name)
        lines.append(f"mkdir -p {shlex.quote(str(path.parent))}")
        lines.append(f"cat > {shlex.quote(str(path))} <<'{END_OF_FILE}'")
        lines += [*text.splitlines(), END_OF_FILE]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in settings.env.items()]
    lines.append(shlex.join([client.program, *settings.arguments, *arguments]))
    return "".join(f"{line}\n" for line in lines)


def _write(client: ClientProgram, folder: Path, files: Mapping[str, str]) -> None:
    """Write files that only this user can read: they may have a key."""
    places = {_place(client, folder, name): text for name, text in files.items()}
    try:
        own_folder(folder)
        for path, text in places.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            part.touch(mode=0o600)
            part.write_text(text, encoding="utf-8")
            part.replace(path)
    except OSError as error:
        raise DovetailError(
            f"cannot write the settings of {client.program}: {error}.",
            where=str(folder),
            fix="name another folder in the variable XDG_STATE_HOME.",
        ) from error


def _place(client: ClientProgram, folder: Path, name: str) -> Path:
    """Return the path of a file in the folder. Raises: PluginError for one outside of it"""
    path = folder / name
    if ".." in Path(name).parts or not path.is_relative_to(folder) or path == folder:
        text = f"the file {name!r} is not within the folder of {client.program}."
        raise PluginError(text, where=f"client {client.program}")
    return path


@contextlib.contextmanager
def _signals_for_the_program() -> Iterator[None]:
    """Inside the with block, Ctrl-C is the program's alone; SIGTERM ends both."""
    handlers = {signal.SIGINT: _ignore, signal.SIGTERM: _leave}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. Unlike SIG_IGN, a started program does not inherit this."""


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
