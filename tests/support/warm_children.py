"""Children of `dovetail.processes.process.spawn`, forked from a process that has their imports.

For tests of what ranks and engines compute.

A rank takes a second of a processor to import torch and five to import transformers' models, and
computes for a tenth of one. What else a child has is as `spawn` makes it: it is a child of this
process, with its own pipes, descriptors, environment and death signal. How a child starts is for
tests that do not use this.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from dovetail.processes import process

RANK, ENGINE = "dovetail_plugins.ranks.rank_process", "dovetail.engine.process"
TEXT = ("torch", "transformers", RANK, ENGINE, "dovetail.runner.worker.device_worker")
MEDIA = (*TEXT, "transformers.modeling_utils", "dovetail_plugins.models._media")
PR_SET_CHILD_SUBREAPER = 36
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""What engines set for their children, once they are there."""
UNTOLD = ("PYTEST_CURRENT_TEST", *WAITING)
"""Variables that differ from test to test and mean nothing to a child, or are set for all."""
PARAMETERS = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
"""What a Popen starts a child with; its beginning and its end are the same for a fork."""
LENGTH = struct.Struct(">I")
DONE = b"."
"""The process between has ended."""
MOST_DESCRIPTORS = 64
OUT_OF_THE_WAY = 500
"""Descriptors that come are moved here before they get the numbers that they shall have."""


class Forks:
    """The process that has imported `modules` and forks children. `start` returns a child's id."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._ours, theirs = socket.socketpair()
        self.environment = _told(process.child_environment())
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "support.warm_children", str(theirs.fileno()), *modules],
            stdin=subprocess.DEVNULL,
            env=self.environment | WAITING,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start(self, order: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a child, which gets descriptors of this process under the numbers that the order
        tells. It becomes this process's own when the process between them ends, because this one
        takes orphans in meanwhile."""
        text = json.dumps(order).encode()
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._ours, [LENGTH.pack(len(text))], list(descriptors))
            self._ours.sendall(text)
            (pid,) = LENGTH.unpack(self._ours.recv(LENGTH.size, socket.MSG_WAITALL))
            self._ours.recv(len(DONE))
        finally:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
        return int(pid)

    def end(self) -> None:
        """End the process. Its children stay."""
        self._ours.close()
        self._process.wait(60)


@cache
def forks_of(modules: tuple[str, ...]) -> Forks:
    """Return the process that has imported the modules, which ends with this one."""
    forks = Forks(modules)
    atexit.register(forks.end)
    return forks


@contextlib.contextmanager
def warm_children(modules: tuple[str, ...] = TEXT) -> Iterator[None]:
    """Fork ranks and engines while the with block runs; `modules` are imported once, when the first
    starts. One that shall have other variables than that had is started as usual."""
    assert threading.current_thread() is threading.main_thread(), "children end with this thread"

    class Popen(subprocess.Popen[bytes]):
        def _execute_child(self, *values: Any) -> None:
            asked = dict(zip(PARAMETERS, values, strict=True))
            module = asked["args"][-1]
            source = forks_of(modules) if module in (RANK, ENGINE) else None
            if source is not None and source.environment == _told(asked["env"]):
                self._fork(source, module, asked)
            else:
                super()._execute_child(*values)  # type: ignore[misc]

        def _fork(self, source: Forks, module: str, asked: dict[str, Any]) -> None:
            assert asked["cwd"] is None
            ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
            usual = [end if end >= 0 else number for number, end in enumerate(ends)]
            order = {
                "module": module,
                "environment": dict(asked["env"]),
                "numbers": [0, 1, 2, *asked["pass_fds"]],
                "folder": str(Path.cwd()),
                "group": asked["process_group"],
                "parent": os.getpid(),
            }
            self.pid = source.start(order, [*usual, *asked["pass_fds"]])
            self._child_created = True
            for end in {*ends} - {-1, 0, 1, 2}:
                os.close(end)

    stand_in = ModuleType(subprocess.__name__)
    vars(stand_in).update(vars(subprocess) | {"Popen": Popen})
    process.subprocess = stand_in  # type: ignore[attr-defined]
    try:
        yield
    finally:
        process.subprocess = subprocess  # type: ignore[attr-defined]


def _told(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in UNTOLD}


def main(number: int, modules: Sequence[str]) -> None:
    """Import the modules, then fork a child for every order that comes; end with the socket."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    orders = socket.socket(fileno=number)
    while True:
        head, descriptors, _, _ = socket.recv_fds(orders, LENGTH.size, MOST_DESCRIPTORS)
        if not head:
            return
        (size,) = LENGTH.unpack(head)
        order = json.loads(orders.recv(size, socket.MSG_WAITALL))
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                _become(order, descriptors)
            os._exit(0 if orders.send(LENGTH.pack(child)) else 1)
        os.waitpid(between, 0)
        orders.sendall(DONE)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(order: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Be the child that is ordered, and end as it ends."""
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD, OUT_OF_THE_WAY) for one in descriptors]
    os.closerange(3, OUT_OF_THE_WAY)
    for one, number in zip(moved, order["numbers"], strict=True):
        os.dup2(one, number)
        os.close(one)
    while os.getppid() != order["parent"]:
        time.sleep(0.001)
    if order["group"] is not None and order["group"] >= 0:
        os.setpgid(0, order["group"])
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    os._exit(_status_of(order["module"]))


def _status_of(module: str) -> int:
    """Return the status with which the child ends, after what Python does at its end."""
    try:
        status = process.main(module)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
