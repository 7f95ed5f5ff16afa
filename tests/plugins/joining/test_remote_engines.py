"""Engines that an EngineStarter starts: they come by themselves, what keeps one away is told, and
the starter is closed behind them. Its machines are threads, which run headless processes' work."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from dovetail.config.config import Config
from dovetail.config.rules.parallel.engines import check_engines, engine_numbers, engines_elsewhere
from dovetail.config.rules.parallel.joining import meeting_of
from dovetail.engine.client.offline.sync_engines import SyncEngines
from dovetail.errors import ConfigError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.interfaces.engine_starter import EngineStarter, EnginesWanted
from dovetail.interfaces.plugin import Value
from dovetail_plugins.joining.headless import join
from dovetail_plugins.joining.remote_engines import JoiningEngines
from dovetail_testing.fakes.engine import fake_spec
from support import machines

BACKEND = Value(summary="threads", value=f"{__file__}:Threads")
BROKEN = Value(summary="machines that do not come", value=f"{__file__}:Absent")
SPEC = msgspec.structs.replace(
    fake_spec(),
    num_engines=2,
    elsewhere=(0, 1),
    router=Selection(kind="router", name="turns", target=f"{machines.__file__}:Turns"),
)


class Threads(EngineStarter):
    """Each engine joins in a thread of this process."""

    def __init__(self, wanted: EnginesWanted) -> None:
        self.wanted = wanted
        self.threads: list[threading.Thread] = []
        self.outcomes: list[int] = []
        self.is_closed = False

    @property
    def host(self) -> str:
        """Return the loopback."""
        return "127.0.0.1"

    def start(self, fields: Mapping[str, Any]) -> None:
        """Have each come."""
        self.fields = fields
        for number in self.wanted.numbers:
            thread = threading.Thread(target=self._run, args=(number,), daemon=True)
            thread.start()
            self.threads.append(thread)

    def _run(self, number: int) -> None:
        spec: EngineSpec = msgspec.structs.replace(SPEC, engine=number, elsewhere=())
        meeting = meeting_of(Config.from_fields(self.fields).parallel)
        self.outcomes.append(join(meeting, (spec,)).run())

    def look(self) -> None:
        """All is well."""

    def close(self) -> None:
        """Wait until all have gone."""
        for thread in self.threads:
            thread.join(10)
        self.is_closed = True


class Absent(Threads):
    """Nobody comes."""

    def start(self, fields: Mapping[str, Any]) -> None:
        """Start nothing."""

    def look(self) -> None:
        """Raise what kept it away."""
        raise ConfigError("engine 0 on h: there is no such model.", where="--model")


def config_of(backend: str = "BACKEND", **fields: Any) -> Config:
    return Config.from_fields(
        {"data_parallel_size": 2, "data_parallel_backend": f"{__file__}:{backend}", **fields}
    )


def test_engines_are_started_with_the_servers_settings_and_answer() -> None:
    config = config_of(num_threads=3, api_server_count=2, max_num_seqs=7)
    check_engines(config.parallel, config.frontend)
    with JoiningEngines(config, SPEC) as elsewhere:
        engines = SyncEngines(SPEC, elsewhere.wait())
        try:
            params = SamplingParams(max_tokens=4, seed=1)
            keys = {engines.submit(engines.prepare("a prompt", params)) for _ in range(4)}
            while keys:
                step = engines.step()
                assert not step.errors
                keys -= {key for key, output in step.outputs if output.is_finished}
        finally:
            engines.shutdown()
    starter: Any = elsewhere._starter
    assert starter.wanted == EnginesWanted(numbers=(0, 1), num_ranks=1, device="cpu", num_threads=3)
    assert starter.is_closed and starter.outcomes == [0, 0]
    told = Config.from_fields(starter.fields)
    assert (told.scheduler.max_num_seqs, told.frontend.api_server_count) == (7, 1)
    assert told.parallel.headless and told.parallel.data_parallel_size == 2


def test_what_keeps_an_engine_away_is_told_at_once() -> None:
    refused = pytest.raises(ConfigError, match="engine 0 on h: there is no such model")
    with JoiningEngines(config_of("BROKEN"), SPEC) as elsewhere, refused:
        elsewhere.wait()
    starter: Any = elsewhere._starter
    assert starter.is_closed


def test_which_engines_are_started_elsewhere() -> None:
    assert (engine_numbers(config_of().parallel), engines_elsewhere(config_of().parallel)) == (
        range(0),
        range(2),
    )
    some = config_of(data_parallel_size_local=1)
    assert (engine_numbers(some.parallel), engines_elsewhere(some.parallel)) == (
        range(1),
        range(1, 2),
    )


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"data_parallel_rank": 1}, "with --data-parallel-rank there are others"),
        ({"data_parallel_hybrid_lb": True}, "with --data-parallel-hybrid-lb there are others"),
        ({"headless": True}, "is for a server, and this process is not one"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config = config_of(**fields)
        check_engines(config.parallel, config.frontend)
