"""`dovetail run` in a terminal: it loads, answers, survives Ctrl-C, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support.impostors import make_impostors
from support.orphans import survivors

pytestmark = pytest.mark.e2e
LIMIT_S = 60.0
QUESTION = "What is the capital of France?"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words: str, folder: Path) -> None:
        self.text = ""
        self._near, far = pty.openpty()
        self.process = subprocess.Popen(
            command(*words), stdin=far, stdout=far, stderr=far, start_new_session=True,
            preexec_fn=_take_terminal, env=environment(folder),
        )  # fmt: skip
        os.close(far)

    def until(self, words: str) -> str:
        """Return what is shown up to `words`, taken away from `text`."""
        assert self._shows(words, LIMIT_S), self.text
        shown, _, self.text = self.text.partition(words)
        return shown

    def _shows(self, words: str, limit_s: float) -> bool:
        """Read until `words` are there or the time is over."""
        deadline_s = time.monotonic() + limit_s
        while words not in self.text and time.monotonic() < deadline_s:
            if select.select([self._near], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # how Linux says that nobody holds it any more
                    self.text += os.read(self._near, 65536).decode("utf-8", "replace")
        return words in self.text

    def type(self, text: str) -> None:
        os.write(self._near, text.encode())

    def interrupt(self, words: str) -> None:
        """Press Ctrl-C as a person does, again when nothing comes: CPython's input() looks for
        signals before it waits for a key, and sees one that comes in between at the next."""
        for _ in range(int(LIMIT_S)):
            self.type("\x03")
            if self._shows(words, 1.0):
                return
        raise AssertionError(f"{words!r} was never shown, only {self.text!r}")

    def close(self) -> None:
        for child in tree(self.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.kill()
        self.process.wait()
        os.close(self._near)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in what a shell runs in the background


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dovetail", "run", *words]


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    own = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return os.environ | own | {"TMPDIR": str(folder), "TERM": "dumb"}


def tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def test_a_conversation(tmp_path: Path) -> None:
    terminal = Terminal("--temperature", "0", folder=tmp_path)
    try:
        shown = terminal.until("> ")
        assert "loading the demo model" in shown
        assert "dovetail-run-" in shown and "http://127.0.0.1:" in shown
        children = tree(terminal.process)
        assert len(children) >= 2
        terminal.type(f"{QUESTION}\n")
        terminal.until("Paris")
        terminal.until("> ")
        terminal.interrupt("Ctrl-D leaves.")
        terminal.type(f"{QUESTION}\n")
        terminal.until("Paris")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(LIMIT_S) == 0
        assert psutil.wait_procs(children, timeout=3)[1] == []
        assert list(tmp_path.glob("dovetail-run-*")) == []
    finally:
        terminal.close()


def test_one_question(tmp_path: Path) -> None:
    words = command("-q", QUESTION, "--temperature", "0", "--api-key", "k")
    done = subprocess.run(words, capture_output=True, text=True, env=environment(tmp_path))
    assert (done.returncode, done.stdout) == (0, "The capital of France is Paris.\n"), done.stderr
    assert list(tmp_path.glob("dovetail-run-*")) == []


@pytest.mark.cold_start
def test_no_code_of_the_working_folder_runs(tmp_path: Path) -> None:
    """Not in the command, nor in the server, nor in its engine."""
    note = make_impostors(tmp_path / "work")
    words = [sys.executable, "-P", *command("-q", QUESTION, "--temperature", "0")[1:]]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment(tmp_path), cwd=tmp_path / "work"
    )
    assert note.read_text() == ""
    assert (done.returncode, done.stdout) == (0, "The capital of France is Paris.\n"), done.stderr


def test_a_killed_terminal_takes_its_server_along(tmp_path: Path) -> None:
    terminal = Terminal(folder=tmp_path)
    try:
        terminal.until("> ")
        children = tree(terminal.process)
        assert len(children) >= 2
        terminal.process.send_signal(signal.SIGKILL)
        assert survivors(children, 1.0) == []
    finally:
        terminal.close()


def test_a_fault_of_the_server_is_shown(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    words = command(str(tmp_path / "model"), "-q", "hi")
    done = subprocess.run(words, capture_output=True, text=True, env=environment(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("dovetail: error: ") and "config.json" in lines[0]
    assert lines[1].startswith("fix: ")
    assert Path(lines[-1].rpartition(" ")[2]).exists()


def test_a_taken_port_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        words = command("--port", str(port))
        done = subprocess.run(words, capture_output=True, text=True, env=environment(tmp_path))
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr
