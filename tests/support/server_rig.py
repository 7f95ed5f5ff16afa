"""Rig: a server, a control request and streams whose answers are known, for tests of what one
request does to others. A Crowd keeps the streams running.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from support.orphans import is_running
from support.server_process import ServerProcess

NUM_STREAMS = 8
STREAM_TOKENS = 100
LIMIT_S = 20.0


@dataclass(slots=True, kw_only=True)
class Rig:
    """A server with a control request and streams whose answers are known."""

    server: ServerProcess
    control: dict[str, Any]
    streams: Sequence[dict[str, Any]]
    cues: dict[str, int]
    client: httpx.Client
    engine: psutil.Process | None = None
    answer: str = ""
    texts: list[str] = field(default_factory=list)

    def learn(self) -> None:
        """Note the engine's process and the good answers. Mutates: self"""
        self.engine = self.server.engine()
        self.answer = self.ask(self.control)
        with ThreadPoolExecutor(NUM_STREAMS) as pool:
            self.texts = list(pool.map(self.ask, self.streams))

    def ask(self, body: dict[str, Any]) -> str:
        """Return the text of a completion."""
        response = self.client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def check(self) -> None:
        """Fail unless the same engine gives the same control answer."""
        assert self.ask(self.control) == self.answer
        assert self.server.process.poll() is None
        assert self.engine is not None and is_running(self.engine)


class Crowd:
    """Eight streams that begin anew whenever they end; `faults` tells what any of them lost."""

    def __init__(self, rig: Rig) -> None:
        self.faults: list[str] = []
        self.num_whole = 0
        self._rig = rig
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(NUM_STREAMS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, which: int) -> None:
        body = self._rig.streams[which] | {"stream": True}
        with self._rig.server.client() as client:
            while not self._stop.is_set() and not self.faults:
                try:
                    self._once(client, body, self._rig.texts[which])
                except Exception as error:
                    self.faults.append(f"stream {which}: {type(error).__name__}: {error}")

    def _once(self, client: httpx.Client, body: dict[str, Any], text: str) -> None:
        with client.stream("POST", "/v1/completions", json=body) as response:
            events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", events[-1]
        got = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
        assert got == text, f"{got!r} is not {text!r}"
        self.num_whole += 1

    def stop(self) -> None:
        """Let every stream come to its end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)


def demo_rig(server: ServerProcess) -> Rig:
    """Return the rig of a server of the demo model."""
    usual = {"temperature": 0, "max_tokens": STREAM_TOKENS, "ignore_eos": True}
    return Rig(
        server=server,
        control={"prompt": "The capital of France is", "temperature": 0, "max_tokens": 6},
        streams=[{"prompt": f"{i} times one is", **usual} for i in range(2, 2 + NUM_STREAMS)],
        cues={},
        client=server.client(timeout=LIMIT_S),
    )
