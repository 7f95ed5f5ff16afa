"""Deployment: what a supervisor does to its server, in a small file that the server reads.

The file has the supervisor's process id in its name, so that the processes of its servers, which
descend from it, find it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from dovetail.json_values import InvalidJson, json_struct
from dovetail.processes.own_folder import own_folder
from dovetail.server.launch.records import records_folder

State = Literal["starting", "serving", "failed"]


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """The servers so far: `generation` is the number of the one that serves, from 1. `state` is
    that of the latest change: it is starting, serves, or has failed for a `reason`, when the server
    before it goes on. `asked` counts the changes."""

    generation: int
    state: State
    asked: int = 0
    reason: str = ""


def file_of(pid: int) -> Path:
    """Return the file of a supervisor."""
    return records_folder() / f"{pid}.deployment"


def write(deployment: Deployment) -> None:
    """Write this process's file. Raises: OSError, ConfigError"""
    folder = own_folder(records_folder())
    part = folder / f"{os.getpid()}.deployment-part"
    part.write_bytes(msgspec.json.encode(deployment))
    part.replace(file_of(os.getpid()))


def read_own() -> tuple[int, Deployment] | None:
    """Return the supervisor of this process, and its deployment; None if there is none."""
    for parent in psutil.Process().parents():
        try:
            return parent.pid, json_struct(file_of(parent.pid).read_bytes(), Deployment)
        except (OSError, InvalidJson):
            continue
    return None


def ask(pid: int) -> None:
    """Have a supervisor replace its server."""
    os.kill(pid, signal.SIGHUP)
