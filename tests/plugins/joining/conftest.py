"""What tests of joining share: imports made once, and an address to meet at."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dovetail.config.rules.parallel.joining import Meeting
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail_testing.fakes.engine import fake_spec
from support.machines import LIMIT_S, meeting_at


@pytest.fixture(scope="module", autouse=True)
def imports_are_made(warm_processes: None) -> None:
    """Start one engine alone. The first waits, and lets nobody else run, until the process that
    engines are forked from has its imports: engines elsewhere would be taken for dead."""

    async def main() -> None:
        engine = await AsyncEngine.start(fake_spec())
        await engine.shutdown()

    asyncio.run(main())


@pytest.fixture
def meeting() -> Meeting:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    return meeting_at(port, data_parallel_join_timeout=LIMIT_S)
