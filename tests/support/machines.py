"""Machines that join a server, for tests: threads that run engines in processes of their own."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from dovetail.config.config import Config
from dovetail.config.rules.parallel.joining import Meeting, meeting_of
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.errors import ConfigError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineShare, EngineSpec, Selection
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.router import EngineView, RoutedRequest, Router, RouterFacts
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats
from dovetail_plugins.joining.headless import HeadlessEngines
from dovetail_plugins.joining.join import join_engines
from dovetail_testing.fakes.engine import fake_spec

SECRET = b"a secret of the tests"
LIMIT_S = 30.0


class Turns(Router):
    """Takes the engines in turn."""

    info = Info(summary="test router")

    def __init__(self, options: Any, facts: RouterFacts) -> None:
        self._count = 0

    def choose(self, request: RoutedRequest, engines: Any) -> int:
        """Return the next engine."""
        view: EngineView = engines[self._count % len(engines)]
        self._count += 1
        return view.number


class Ledger(StatLogger):
    """Keeps the numbers of requests."""

    info = Info(summary="test logger")

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        self.requests: list[RequestStats] = []

    def step(self, stats: StepStats) -> None:
        """Steps are of no interest."""

    def request(self, stats: RequestStats) -> None:
        """Keep it."""
        self.requests.append(stats)


def spec_of(here: int = 1, elsewhere: int = 1, **changes: Any) -> EngineSpec:
    """Return the spec of a server with so many engines of its own and so many elsewhere."""
    return msgspec.structs.replace(
        fake_spec(options={"delay_s": 0.004}),
        num_engines=here + elsewhere,
        shares=tuple(EngineShare(engine=n) for n in range(here)) if here > 1 else (),
        elsewhere=tuple(range(here, here + elsewhere)),
        router=Selection(kind="router", name="turns", target=f"{__file__}:Turns"),
        stat_loggers=(Selection(kind="stat_logger", name="l", target=f"{__file__}:Ledger"),),
        **changes,
    )


def far(spec: EngineSpec, *numbers: int, **changes: Any) -> tuple[EngineSpec, ...]:
    """Return the specs of engines on another machine."""
    own = msgspec.structs.replace(spec, elsewhere=(), shares=(), **changes)
    return tuple(msgspec.structs.replace(own, engine=number) for number in numbers)


def meeting_at(port: int, **flags: Any) -> Meeting:
    """Return where the machines meet, as flags say it."""
    usual = {
        "data_parallel_address": "127.0.0.1",
        "data_parallel_rpc_port": port,
        "data_parallel_secret": SECRET.decode(),
    }
    return meeting_of(Config.from_fields(usual | flags).parallel)


class Machine(threading.Thread):
    """Another machine: a headless process's work, in a thread. `outcome` is its exit status, or
    why it could not join."""

    def __init__(self, meeting: Meeting, specs: tuple[EngineSpec, ...]) -> None:
        super().__init__(daemon=True)
        self._meeting, self._specs = meeting, specs
        self.outcome: int | ConfigError | None = None
        self.engines: HeadlessEngines | None = None
        self.start()

    def run(self) -> None:
        """Join, and run the engines."""
        try:
            joined = join_engines(self._meeting, self._specs)
        except ConfigError as error:
            self.outcome = error
            return
        self.engines = HeadlessEngines(joined, self._meeting)
        self.outcome = self.engines.run()

    def ended(self) -> int | ConfigError | None:
        """Return the outcome, once there is one."""
        self.join(LIMIT_S)
        assert not self.is_alive()
        return self.outcome


async def whole(engine: AsyncEngine, prompt: Any = "prompt", **fields: Any) -> str:
    params = SamplingParams(**{"max_tokens": 10, "seed": 1} | fields)
    text = ""
    async for output in engine.generate(prompt, params, "r"):
        text += output.deltas[0].text
    return text


def refused(meeting: Meeting, specs: tuple[EngineSpec, ...]) -> str:
    with pytest.raises(ConfigError) as caught:
        join_engines(meeting, specs)
    return str(caught.value)
