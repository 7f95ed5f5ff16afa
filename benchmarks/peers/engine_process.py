"""One engine's worker process, seen from run.py: start it, ask it, stop it.

Speaks the JSON lines of worker.py.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.catalog import Engine

CHECKOUT = Path(__file__).resolve().parents[2]
LOAD_LIMIT_S = 400.0


class EngineFailed(Exception):
    """The worker ended, or did not answer in time."""


def environment(engine: Engine, num_threads: int) -> dict[str, str]:
    """Return what the worker's process sees: this checkout, its number of threads, no network.

    Of the checkout a peer sees the package `benchmarks` alone, whose names hide none of its own.
    """
    told = os.environ | {"OMP_NUM_THREADS": str(num_threads), "HF_HUB_OFFLINE": "1"}
    told |= {"TOKENIZERS_PARALLELISM": "false"} | engine.environment
    parts = ("core", "plugins", "kernels") if engine.is_dovetail else ()
    told["PYTHONPATH"] = os.pathsep.join(str(CHECKOUT / part) for part in (*parts, "."))
    return told


class EngineProcess:
    """A loaded engine. Use `stop`, or leave the block it was entered in."""

    def __init__(
        self,
        engine: Engine,
        *,
        python: str,
        model: Path,
        checkpoint: Path,
        num_threads: int,
        log: Path,
    ) -> None:
        """Start and load. Raises: EngineFailed"""
        self.engine = engine
        self.log = log
        # -P: neither the current folder nor the worker's own stands on its path
        command = [python, "-P", "-m", "benchmarks.peers.worker", engine.driver]
        command += ["--model", str(model)]
        command += ["--checkpoint", str(checkpoint), "--threads", str(num_threads)]
        command += ["--options", json.dumps(engine.options)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            env=environment(engine, num_threads),
            bufsize=0,
        )
        self.load_s = self._answer(LOAD_LIMIT_S)["load_s"]
        self.facts = self.ask({"do": "facts"}, 60)

    @property
    def pid(self) -> int:
        """Return the worker's process id."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether the worker runs."""
        return self.process.poll() is None

    def ask(self, command: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send one command and return its answer. Raises: EngineFailed"""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write((json.dumps(command) + "\n").encode())
        except BrokenPipeError:
            raise EngineFailed(self._why("it has ended")) from None
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = b""
        deadline_s = time.perf_counter() + limit_s
        while not line.endswith(b"\n"):
            left_s = max(0.0, deadline_s - time.perf_counter())
            if not select.select([self.process.stdout], [], [], left_s)[0]:
                self.stop()
                raise EngineFailed(self._why(f"no answer in {limit_s:.0f} s"))
            piece = os.read(self.process.stdout.fileno(), 1 << 20)
            if not piece:
                raise EngineFailed(self._why("it ended"))
            line += piece
        return dict(json.loads(line))

    def _why(self, what: str) -> str:
        last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"{self.engine.name}: {what}; log {self.log}: {' '.join(last)[:300]}"

    def stop(self) -> None:
        """End the worker: asked first, killed after ten seconds."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            try:
                self.process.stdin.write(b'{"do": "end"}\n')
                self.process.wait(10)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self.process.kill()
        self.process.wait(10)
