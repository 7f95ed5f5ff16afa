"""Child processes: the boot message arrives whole, nothing of the working folder runs, the child
ends with its parent."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.errors import ConfigError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.processes import process
from dovetail.server.generate.tools.parsers import ParserChoice
from dovetail.server.launch import api_processes
from dovetail_testing.fakes.engine import fake_renderer, fake_spec
from support.impostors import make_impostors
from support.orphans import kill_parent, own_children, survivors

CORE = Path(__file__).resolve().parents[3] / "core"
LIMIT_S = 20.0
SOON_S = 1.0
"""How long a child may outlive its parent."""

CHILD = """
import json, os, socket, subprocess, sys, time
from dovetail.processes import process

def main():
    order = process.read_boot(dict)
    return globals()[order["do"]](order)

def count(order):
    process.open_channel().sendall(str(len(order["text"])).encode())
    return 7

def tell(order):
    told = {"path": sys.path, "cwd": os.getcwd(), "variable": os.environ.get("DOVETAIL_TOLD"),
            "safe": bool(sys.flags.safe_path), "session": os.getsid(0), "group": os.getpgid(0),
            "grandchild": subprocess.run([sys.executable, "-c", "import mate; print(mate.NAME)"],
                                         capture_output=True, text=True).stdout}
    process.open_channel().sendall(json.dumps(told).encode())
    print("a stray line")
    return 0

def sleep(order):
    print("asleep", file=sys.stderr, flush=True)
    time.sleep(60)

def stay(order):
    import ctypes
    print("asleep", file=sys.stderr, flush=True)
    while True:
        ctypes.PyDLL(None).sleep(60)  # keeps the interpreter lock: no Python thread can run
"""


@pytest.fixture
def mates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with a child's module and another."""
    folder = tmp_path / "mates"
    folder.mkdir()
    (folder / "errand.py").write_text(CHILD)
    (folder / "mate.py").write_text("NAME = 'mate'\n")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No child of this process outlives a test."""
    yield
    assert own_children() == []


def received(child: process.Child) -> bytes:
    """Return what a child sends until it ends, and end it."""
    assert child.channel is not None
    child.channel.settimeout(LIMIT_S)
    parts = []
    while part := child.channel.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("size", [0, 1 << 16, 5 << 20])
def test_a_boot_message_of_any_length_arrives(mates: Path, size: int) -> None:
    child = process.spawn("errand", {"do": "count", "text": "x" * size}, has_channel=True)
    assert received(child) == str(size).encode()
    assert child.wait(LIMIT_S) == child.status == 7
    assert child.end(0.0) == 7


@pytest.mark.parametrize("size", [1, 5 << 20])
def test_a_child_that_ends_before_it_has_read_is_known_by_its_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 5\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    child = process.spawn("errand", "x" * size, has_channel=True)
    assert child.wait(LIMIT_S) == 5
    assert received(child) == b""
    assert child.end(0.0) == 5


def test_what_cannot_be_started_or_encoded_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().num_fds()
    with pytest.raises(TypeError):
        process.spawn("errand", object(), has_channel=True)
    with pytest.raises(ConfigError, match="64 bits"):
        process.spawn("errand", {"size": 1 << 64}, has_channel=True)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError):
        process.spawn("errand", 1, has_channel=True)
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize(
    "garbage", [b"", b"\0" * 7, b"\0" * 8, b"\0\0\0\0\0\0\0\2hi", b"\0\0\0\0\0\0\1\0{}"]
)
def test_garbage_on_standard_input_ends_the_child(mates: Path, garbage: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dovetail.processes.process", "errand"],
        input=garbage,
        capture_output=True,
        timeout=LIMIT_S,
        env=process.child_environment(),
    )
    assert done.returncode not in (0, 7)
    assert done.stderr


def test_a_message_of_another_type_is_refused(mates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = process.spawn("errand", ["no", "dict"])
    assert child.wait(LIMIT_S) == 1
    child.end(0.0)
    with pytest.raises(RuntimeError, match="not started by"):
        process.read_boot(dict)


def test_the_environment_of_a_child(
    mates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    (work / "relative").mkdir(parents=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere::")
    monkeypatch.setattr(sys, "path", ["", "relative", str(mates), *sys.path, "/no/such"])
    child = process.spawn(
        "errand",
        {"do": "tell"},
        has_channel=True,
        variables={"DOVETAIL_TOLD": "yes"},
        has_own_group=True,
    )
    told = msgspec.json.decode(received(child))
    assert child.wait(LIMIT_S) == 0
    child.end(0.0)
    assert told["variable"] == "yes" and told["safe"]
    assert told["cwd"] == str(work)
    assert str(work) not in told["path"] and "" not in told["path"]
    assert told["path"][:2] == [str(work / "relative"), str(mates)]
    assert len(told["path"]) == len(set(told["path"]))
    assert "/no/such" not in told["path"] and "/elsewhere" not in told["path"]
    assert (told["group"], told["session"]) == (child.pid, os.getsid(0))
    assert told["grandchild"] == "mate\n"
    out, err = capfd.readouterr()
    assert (out, err) == ("", "a stray line\n")


def test_the_standard_library_is_left_to_the_interpreter() -> None:
    paths = process.import_paths()
    assert str(CORE) in paths
    assert not [p for p in paths if Path(p, "os.py").exists() or p.endswith("lib-dynload")]


def test_a_closed_parent_pipe_ends_a_child_and_grace_is_bounded(mates: Path) -> None:
    child = process.spawn("errand", {"do": "sleep"})
    begun_s = time.monotonic()
    assert child.end(LIMIT_S) == process.EXIT_PARENT_GONE
    assert time.monotonic() - begun_s < LIMIT_S / 2
    stuck = process.spawn("errand", {"do": "stay"}, has_channel=True, stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    assert stuck.wait(0.0) is None
    assert stuck.end(0.1) == -9


PARENT = """
import sys, time
from dovetail.processes import process

child = process.spawn("errand", {"do": sys.argv[1]}, leftovers=sys.argv[2:])
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("has_leftovers", [False, True])
def test_a_child_ends_within_a_second_when_its_parent_is_killed(
    mates: Path, tmp_path: Path, has_leftovers: bool
) -> None:
    left = tmp_path / "left"
    (left / "deep").mkdir(parents=True)
    words = [str(left)] if has_leftovers else []
    children = kill_parent(PARENT, "sleep", *words, ready="asleep")
    assert len(children) == 1
    assert survivors(children, SOON_S) == []
    assert left.exists() != has_leftovers


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
@pytest.mark.parametrize(("has_leftovers", "limit_s"), [(False, SOON_S), (True, 7.0)])
def test_a_stuck_child_ends_with_its_parent_too(
    mates: Path, tmp_path: Path, has_leftovers: bool, limit_s: float
) -> None:
    words = [str(tmp_path / "left")] if has_leftovers else []
    children = kill_parent(PARENT, "stay", *words, ready="asleep")
    assert survivors(children, limit_s) == []


def _boot(addresses: tuple[str, ...], sock: socket.socket) -> api_processes.ChildBoot:
    return api_processes.ChildBoot(
        spec=fake_spec(),
        frontend=FrontendConfig(),
        renderer=fake_renderer(),
        parsers=ParserChoice(),
        addresses=addresses,
        process=0,
        socket_fd=sock.fileno(),
        max_queued=8,
    )


async def served() -> None:
    """Run an engine process and an API process until both work."""
    engine = await AsyncEngine.start(fake_spec())
    try:
        async for _ in engine.generate("x", SamplingParams(max_tokens=3), "r"):
            pass
        with socket.create_server(("127.0.0.1", 0)) as sock:
            children = [api_processes._spawn(_boot(engine.addresses_for(0), sock), sock)]
            try:
                await api_processes._wait_started(children)
            finally:
                api_processes._end(children)
    finally:
        await engine.shutdown()


def test_an_engine_and_an_api_process_run_no_code_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = make_impostors(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PYTHONPATH", os.pathsep)  # an empty entry means the working folder
    try:
        asyncio.run(served())
    finally:
        assert note.read_text() == ""


API_PARENT = """
import asyncio, socket, sys
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.server.launch import api_processes
from dovetail.server.generate.tools.parsers import ParserChoice
from dovetail_testing.fakes.engine import fake_renderer, fake_spec

async def main():
    engine = await AsyncEngine.start(fake_spec())
    with socket.create_server(("127.0.0.1", 0)) as sock:
        boot = api_processes.ChildBoot(
            spec=fake_spec(), frontend=FrontendConfig(), renderer=fake_renderer(),
            parsers=ParserChoice(),
            addresses=engine.addresses_for(0), process=0, socket_fd=sock.fileno(), max_queued=8,
        )
        child = api_processes._spawn(boot, sock)
        print(engine.hosts[0].pid, child.pid, flush=True)
        if sys.argv[1] == "running":
            await api_processes._wait_started([child])
        print("waiting", file=sys.stderr, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("stage", ["starting", "running"])
def test_an_engine_and_an_api_process_end_within_a_second_of_their_parent(stage: str) -> None:
    children = kill_parent(API_PARENT, stage, ready="waiting")
    assert len(children) == 2
    assert survivors(children, SOON_S) == []
