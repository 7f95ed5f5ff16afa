"""Transport: messages arrive whole and in order, and a peer that leaves is noticed."""

from __future__ import annotations

import asyncio
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from dovetail.engine.ipc import transport
from dovetail.engine.ipc.transport import MemoryLink, ZmqClientEnd, ZmqEngineEnd
from dovetail.engine.messages import (
    AddRequests,
    Call,
    ClientHello,
    EngineCondition,
    EngineRequest,
    EngineStatus,
    FromEngine,
    Goodbye,
    Ping,
    Return,
    ToEngine,
    Updates,
)
from dovetail.errors import ConfigError
from dovetail.interfaces.data.sampling_params import SamplingParams


@pytest.fixture
def address() -> Iterator[str]:
    folder = transport.make_socket_folder()
    yield transport.address_in(folder)
    shutil.rmtree(folder)


def receive(end: transport.EngineEnd, count: int) -> list[tuple[bytes, ToEngine]]:
    deadline_s = time.monotonic() + 5
    received: list[tuple[bytes, ToEngine]] = []
    while len(received) < count and time.monotonic() < deadline_s:
        received += end.receive(0.05)
    return received


def request(request_id: str) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_ids=(1, 2),
        sampling=SamplingParams(logit_bias={3: -1.5}, stop=("ü",), allowed_token_ids=(1,)),
        seed=(1 << 63) - 1,
        arrival_s=1.25,
    )


def test_the_socket_folder_is_private(address: str) -> None:
    folder = Path(address.removeprefix("ipc://")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_path_too_long_for_a_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transport.tempfile, "gettempdir", lambda: "/" + "x" * 200)
    folder = transport.make_socket_folder()
    assert folder.parent == Path("/tmp")
    folder.rmdir()
    monkeypatch.setattr(transport, "MAX_SOCKET_PATH_BYTES", 5)
    with pytest.raises(ConfigError, match="TMPDIR"):
        transport.make_socket_folder()


def test_messages_go_both_ways_in_order(address: str) -> None:
    async def main() -> None:
        engine = ZmqEngineEnd(address)
        client = ZmqClientEnd(address)
        heard: list[FromEngine] = []
        client.attach(asyncio.get_running_loop(), heard.append, lambda reason: None)
        sent = AddRequests((request("a"), request("b")))
        client.send(ClientHello())
        client.send(sent)
        received = receive(engine, 2)
        assert [message for _, message in received] == [ClientHello(), sent]
        name = received[0][0]
        status = EngineStatus(
            num_steps=7, num_running=0, num_waiting=0, condition=EngineCondition()
        )
        returns = [Return(i, status) for i in range(500)]
        assert all(engine.send(name, message) for message in returns)
        async with asyncio.timeout(5):
            while len(heard) < 500:
                await asyncio.sleep(0.001)
        assert heard == returns
        client.close()
        client.close()
        assert [message for _, message in receive(engine, 1)] == [Goodbye()]
        engine.close()
        engine.close()

    asyncio.run(main())


def test_the_loop_does_other_work_between_messages_that_take_long(address: str) -> None:
    """A backlog of an engine's outputs does not stop the process from accepting requests."""

    async def main() -> None:
        engine = ZmqEngineEnd(address)
        client = ZmqClientEnd(address)
        heard: list[FromEngine] = []

        def slow(message: FromEngine) -> None:
            time.sleep(transport.DRAIN_S)
            heard.append(message)

        client.attach(asyncio.get_running_loop(), slow, lambda reason: None)
        client.send(ClientHello())
        ((name, _),) = receive(engine, 1)
        assert all(engine.send(name, Updates()) for _ in range(40))
        time.sleep(0.1)  # all have arrived
        longest = before = 0
        async with asyncio.timeout(10):
            while len(heard) < 40:
                await asyncio.sleep(0)
                longest, before = max(longest, len(heard) - before), len(heard)
        assert longest <= 2
        client.close()
        engine.close()

    asyncio.run(main())


def test_a_message_sent_while_another_arrives_is_not_missed(address: str) -> None:
    """ZeroMQ's descriptor signals edges: a send may swallow one."""

    async def main() -> None:
        engine = ZmqEngineEnd(address)
        stop = threading.Event()

        def echo() -> None:
            while not stop.is_set():
                for name, _ in engine.receive(0.01):
                    engine.send(name, Updates())

        thread = threading.Thread(target=echo)
        thread.start()
        client = ZmqClientEnd(address)
        heard: list[FromEngine] = []
        client.attach(asyncio.get_running_loop(), heard.append, lambda reason: None)
        async with asyncio.timeout(10):
            for i in range(300):
                client.send(Call(2 * i, Ping()))
                client.send(Call(2 * i + 1, Ping()))
                while len(heard) < 2 * (i + 1):
                    await asyncio.sleep(0)
        stop.set()
        thread.join()
        client.close()
        engine.close()

    asyncio.run(main())


def test_a_client_that_left_is_noticed_by_the_next_send(address: str) -> None:
    engine = ZmqEngineEnd(address)
    context = zmq.Context()
    raw = context.socket(zmq.DEALER)
    raw.setsockopt(zmq.IDENTITY, b"x")
    raw.connect(address)
    raw.send(b"\x91\xa4oops")  # and a malformed message is dropped
    raw.send(transport.msgspec.msgpack.encode(ClientHello()))
    ((name, message),) = receive(engine, 1)
    assert message == ClientHello()
    assert engine.send(name, Updates())
    raw.close(0)
    context.term()
    deadline_s = time.monotonic() + 2
    while engine.send(name, Updates()) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not engine.send(name, Updates())
    engine.close()


def test_an_engine_that_left_is_noticed_at_once(address: str) -> None:
    async def main() -> None:
        engine = ZmqEngineEnd(address)
        client = ZmqClientEnd(address)
        lost = asyncio.Event()
        client.attach(asyncio.get_running_loop(), lambda message: None, lambda reason: lost.set())
        client.send(ClientHello())
        assert receive(engine, 1)
        engine.close()
        async with asyncio.timeout(0.5):
            await lost.wait()
        client.close()

    asyncio.run(main())


def test_the_memory_twin() -> None:
    async def main() -> None:
        link = MemoryLink()
        heard: list[FromEngine] = []
        assert not link.engine_end.send(b"local", Updates())
        link.client_end.attach(asyncio.get_running_loop(), heard.append, lambda reason: None)
        link.client_end.send(ClientHello())
        assert link.engine_end.receive(0.0) == [(b"local", ClientHello())]
        assert link.engine_end.receive(0.0) == []
        thread = threading.Thread(target=link.engine_end.send, args=(b"local", Updates()))
        thread.start()
        thread.join()
        await asyncio.sleep(0)
        assert heard == [Updates()]
        link.client_end.close()
        assert link.engine_end.receive(0.1) == [(b"local", Goodbye())]
        assert not link.engine_end.send(b"local", Updates())

    asyncio.run(main())
