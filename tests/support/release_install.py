"""A clean environment of the release checklist: the wheel installed without a compiler, used."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from support.release_files import Project, bytes_below
from support.release_run import Commands, Failed

START_S, STOP_S = 300, 60
QUESTION = "What is the capital of France?"
ANSWER = "Paris"
AT_FIRST = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
"""What an environment begins with, and the base image too."""
KERNELS = """
from dovetail_kernels.cpu.library import needed_library
import torch
print(needed_library().path, torch.__version__)
"""


class Environment:
    """A virtual environment in a folder, made anew."""

    def __init__(self, folder: Path, commands: Commands) -> None:
        self.folder, self._commands = folder, commands
        self.python = folder / "bin" / "python"
        self.remove()

    def remove(self) -> None:
        """Delete it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def site(self) -> Path:
        """Return the folder of its packages."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        return site

    def _variables(self) -> dict[str, str]:
        """Return variables of a user's shell with no compiler and nothing of a checkout."""
        ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        found = {
            name: value
            for name, value in os.environ.items()
            if name not in ours and not name.startswith("DOVETAIL_")
        }
        return {**found, "CXX": "", "PATH": str(self.folder / "bin"), "HF_HUB_OFFLINE": "1"}

    def _run(self, *words: str | Path) -> str:
        return self._commands.run(*words, cwd=Path("/"), env=self._variables())

    def install(self, python: Path, wheel: Path) -> None:
        """Install the wheel and what it needs, from wheels alone."""
        self._commands.run(python, "-m", "venv", self.folder)
        pip = (self.python, "-m", "pip", "--disable-pip-version-check")
        self._run(*pip, "install", "--no-cache-dir", "--no-compile", "--only-binary=:all:", wheel)
        self._run(*pip, "check")
        for file in self.site.glob("*.dist-info/direct_url.json"):
            file.unlink()  # as after an installation by name; the SBOM would name it

    def uses(self, project: Project) -> str:
        """Use dovetail as after an installation; return what it runs on. Raises: Failed"""
        command = self.folder / "bin" / "dovetail"
        if (version := self._run(command, "--version").split()[-1]) != project.version:
            raise Failed(f"`dovetail --version` says {version}, not {project.version}.")
        rows = json.loads(self._run(command, "plugins", "list", "--json"))
        listed = {(f"dovetail.{row['kind']}", row["name"], row["target"]) for row in rows}
        expected = {
            (group, name, target)
            for group, targets in project.entry_points.items()
            for name, target in targets.items()
            if group.startswith("dovetail.")
        }
        if listed != expected:
            names = sorted(name for _, name, _ in listed ^ expected)
            raise Failed(f"`dovetail plugins list` differs from pyproject.toml in {names[:5]}.")
        library, torch = self._run(self.python, "-c", KERNELS).split()
        if not Path(library).is_relative_to(self.site):
            raise Failed(f"the native kernels are {library}, which is not of the wheel.")
        self.asks_server()
        size = self.num_bytes() / 1e6
        return f"torch {torch}, {size:,.0f} MB, {len(rows)} plugins listed; {ANSWER} is the answer"

    def asks_server(self) -> None:
        """Start `dovetail serve`, ask it a question and end it. Raises: Failed"""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = self._commands.log_of("serve")
        with log.open("w", encoding="utf-8") as output:
            server = subprocess.Popen(
                [str(self.folder / "bin" / "dovetail"), "serve", "--port", str(port)],
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd="/", env=self._variables(),
            )  # fmt: skip
        try:
            answer = _ask(server, f"http://127.0.0.1:{port}", log)
            server.send_signal(signal.SIGTERM)
            status = server.wait(STOP_S)
        finally:
            server.kill()
            server.wait()
        if ANSWER not in answer or status:
            raise Failed(f"the server answered {answer!r} and ended with {status}; {log} has more.")

    def has_cuda(self) -> bool:
        """Return whether its torch has CUDA."""
        text = (self.site / "torch" / "version.py").read_text(encoding="utf-8")
        return re.search(r"^cuda\b.*= None$", text, re.MULTILINE) is None

    def num_bytes(self) -> int:
        """Return the size of the packages it has got, byte code left out."""
        at_first = [path for path in self.site.iterdir() if path.name.split("-")[0] in AT_FIRST]
        return bytes_below(self.site) - bytes_below(*at_first)


def _ask(server: subprocess.Popen[bytes], url: str, log: Path) -> str:
    """Return the answer of a server, once it is ready. Raises: Failed if it never is"""
    end = time.monotonic() + START_S
    while not _is_ready(url):
        if server.poll() is not None or time.monotonic() > end:
            raise Failed(f"the server does not start: {log.read_text(errors='replace')[-600:]}")
        time.sleep(0.5)
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def find_python(version: str) -> Path | None:
    """Return an interpreter of a version such as 3.12: on the PATH, or one that pyenv has."""
    return next((path for path in _candidates(version) if _version_of(path) == version), None)


def _candidates(version: str) -> Iterator[Path]:
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob(f"versions/{version}.*/bin/python"))


def _version_of(python: Path) -> str:
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()
