"""Engines that join a server which runs already, and what they are told of its settings."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.errors import ConfigError, EngineDead
from dovetail_plugins.joining.late import as_headless
from dovetail_plugins.joining.remote_engine import AbsentEngine
from dovetail_plugins.joining.remote_engines import JoinServer, sent_settings
from support.machines import LIMIT_S, SECRET, Machine, far, refused, spec_of, whole


async def until(engine: AsyncEngine, number: int, *, is_alive: bool) -> None:
    """Wait until an engine is alive, or dead for good."""
    async with asyncio.timeout(LIMIT_S):
        while (engine.states()[number].reason is None) is not is_alive:
            await asyncio.sleep(0.01)


def test_an_engine_joins_a_server_that_runs_and_joins_again(meeting: Any) -> None:
    spec = spec_of(0, 2)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with JoinServer(spec, meeting, num_processes=0) as server:
            first = Machine(meeting, far(spec, 0))
            hosts = await loop.run_in_executor(None, lambda: server.begin(needs_one=True))
            engine = await AsyncEngine.start(spec, elsewhere=hosts)
            try:
                server.admit(
                    lambda number, host: loop.call_soon_threadsafe(engine.join, number, host)
                )
                alone = await whole(engine)
                assert engine.states()[1].reason == AbsentEngine.absence
                for restarts in (0, 1):
                    assert server.free() == (1,)
                    late = Machine(meeting, far(spec, 1))
                    await until(engine, 1, is_alive=True)
                    assert await whole(engine) == await whole(engine) == alone
                    assert engine.states()[1].restarts == restarts
                    assert "engine 1 has joined already" in refused(meeting, far(spec, 1))
                    assert late.engines is not None
                    late.engines.stop(signal.SIGTERM)
                    await until(engine, 1, is_alive=False)
                    await loop.run_in_executor(None, late.ended)
                    assert await whole(engine) == alone
            finally:
                await engine.shutdown()
                first.ended()

    asyncio.run(main())


def test_a_server_with_several_api_processes_is_complete_at_its_start(meeting: Any) -> None:
    spec = spec_of(1, 1)
    with JoinServer(spec, meeting, num_processes=1) as server:
        server.begin(needs_one=False)
        assert "the server has several API processes" in refused(meeting, far(spec, 1))


def test_there_is_nothing_at_the_other_end_of_an_absent_engine() -> None:
    with pytest.raises(EngineDead, match="has not joined"):
        AbsentEngine().end.send(None)  # type: ignore[arg-type]


def test_secrets_and_what_concerns_one_machine_do_not_travel() -> None:
    given = {"model": "a/b", "max_model_len": 77, "hf_token": "t", "api_key": ["k"], "port": 1,
             "data_parallel_secret": SECRET.decode(), "num_threads": 3,
             "hf_overrides": {"auth_token": "t"}}  # fmt: skip
    assert sent_settings(Config.from_fields(given)) == {"model": "a/b", "max_model_len": 77}


def test_a_late_engine_has_the_servers_settings_and_its_own(meeting: Any) -> None:
    own = {"join": meeting.name, "data_parallel_secret": SECRET.decode(), "num_threads": 3,
           "model": "/here/b"}  # fmt: skip
    with JoinServer(spec_of(1, 2), meeting, num_processes=0) as server:
        server.settings = {"model": "a/b", "max_model_len": 77}
        found = as_headless(Config.from_fields(own))
        assert found.model.model == "/here/b" and found.model.max_model_len == 77
        assert found.device.num_threads == 3
        parallel = found.parallel
        assert parallel.headless and parallel.data_parallel_start_rank == 1
        assert (parallel.data_parallel_address, parallel.join) == (meeting.host, None)
        wrong = Config.from_fields(own | {"data_parallel_secret": "not the same text"})
        with pytest.raises(ConfigError, match="another secret"):
            as_headless(wrong)
    for address in ("nowhere", "host:x", ":1"):
        with pytest.raises(ConfigError, match="is not HOST:PORT"):
            as_headless(Config.from_fields(own | {"join": address}))
    gone = own | {"data_parallel_join_timeout": 0.0}
    with pytest.raises(ConfigError, match="no server listens at"):
        as_headless(Config.from_fields(gone))
