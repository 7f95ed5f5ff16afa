"""Engines of other machines behind one AsyncEngine: they come, answer, die and leave; others are
refused. The machines are threads here, the engines processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import msgspec
import psutil
import pytest

from dovetail.config.config import flags as config_flags
from dovetail.config.rules.parallel.joining import Meeting
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.engine.client.results.clock import ClockLead
from dovetail.engine.ipc.socket_ends import DESCRIPTOR, descriptor_of
from dovetail.errors import ConfigError, EngineDead
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.processes.handshake import (
    WrongSecret,
    challenge,
    receive_message,
    respond,
    send_message,
)
from dovetail_plugins.joining.comparison import COMPARED
from dovetail_plugins.joining.join import join_engines
from dovetail_plugins.joining.peers import JoinReply, JoinRequest
from dovetail_plugins.joining.remote_engine import RemoteEngine
from dovetail_plugins.joining.remote_engines import JoinServer
from support.inside import connections_of, loggers_of
from support.machines import LIMIT_S, SECRET, Machine, far, meeting_at, refused, spec_of, whole
from support.orphans import command_of, own_children, survivors


def engines_of(server: JoinServer) -> list[RemoteEngine]:
    """Return the engines of a server, once they have joined."""
    return [RemoteEngine(peer) for peer in server.wait(server.meeting.limit_s)]


@asynccontextmanager
async def serving(
    spec: EngineSpec, meeting: Meeting, *machines: tuple[EngineSpec, ...], num_processes: int = 0
) -> AsyncIterator[tuple[AsyncEngine, list[Machine]]]:
    """Give a server's engine whose other machines have joined."""
    with JoinServer(spec, meeting, num_processes=num_processes) as server:
        joined = [Machine(meeting, specs) for specs in machines]
        elsewhere = await asyncio.get_running_loop().run_in_executor(None, engines_of, server)
        engine = await AsyncEngine.start(spec, elsewhere=elsewhere)
        try:
            yield engine, joined
        finally:
            await engine.shutdown()
            for machine in joined:
                machine.ended()


def children() -> list[psutil.Process]:
    found = own_children(recursive=True)
    return [child for child in found if "dovetail.engine.process" in command_of(child)]


def test_engines_of_three_machines_answer_as_one_and_leave_in_order(meeting: Meeting) -> None:
    spec = spec_of(1, 2)

    async def main() -> None:
        async with serving(spec, meeting, far(spec, 2), far(spec, 1)) as (engine, machines):
            texts = await asyncio.gather(*(whole(engine, "p" * (1 + i % 3)) for i in range(12)))
            assert texts == [texts[i % 3] for i in range(12)]
            (ledger,) = loggers_of(engine)
            numbers = sorted(stats.engine for stats in ledger.requests)  # type: ignore[attr-defined]
            assert numbers == [0] * 4 + [1] * 4 + [2] * 4
            own, *others = engine.states()
            assert own.machine == "" and {one.machine for one in others} == {socket.gethostname()}
            await engine.reset_prefix_cache()
        assert [machine.outcome for machine in machines] == [0, 0]
        assert survivors(children(), 2.0) == []

    asyncio.run(main())


def test_a_server_without_engines_and_two_api_processes(meeting: Meeting) -> None:
    spec = spec_of(0, 1)
    long = "x" * 300_000  # more than a socket takes at once

    async def main() -> None:
        async with serving(spec, meeting, far(spec, 0), num_processes=1) as (first, _):
            (address,) = first.addresses_for(0)
            number = descriptor_of(address)
            assert number is not None
            second = await AsyncEngine.attach([f"{DESCRIPTOR}{os.dup(number)}"], spec, process=0)
            first.hand_over()
            try:
                assert await whole(second) == await whole(first)
                with pytest.raises(Exception, match="tokens"):
                    await whole(second, long)
            finally:
                await second.shutdown()
            assert len(await whole(first)) > 0  # the other's leaving ends nothing

    asyncio.run(main())


def test_clocks_of_other_machines_are_brought_to_this_one(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = ClockLead()
    assert lead.note(100.0, 5100.5, 101.0) == 5000.0
    assert lead.note(200.0, 5209.0, 210.0) == 5000.0  # its way was longer, so it says less
    assert lead.note(300.0, 5300.2, 300.2) == pytest.approx(5000.1)
    spec = spec_of(0, 1)
    monkeypatch.setattr(ClockLead, "note", lambda self, *times: 5000.0)

    async def main() -> None:
        async with serving(spec, meeting, far(spec, 0)) as (engine, _):
            (connection,) = connections_of(engine)
            while not connection.output.clock_lead_s:
                await asyncio.sleep(0.01)
            await whole(engine)
            (ledger,) = loggers_of(engine)
            times = ledger.requests[-1].times  # type: ignore[attr-defined]
            assert 0 < times.first_token_s - (times.arrival_s - 5000) < 5
            assert 0 < times.scheduled_s - (times.arrival_s - 5000) < 5

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["kill", "stop", "machine"])
def test_a_fault_elsewhere_ends_the_requests_of_that_engine_alone(
    meeting: Meeting, fault: str
) -> None:
    spec = spec_of(1, 1, step_timeout_s=0.4)

    async def main() -> None:
        async with serving(spec, meeting, far(spec, 1)) as (engine, (machine,)):
            here, _ = engine.hosts
            (victim,) = [child for child in children() if child.pid != here.pid]  # type: ignore[attr-defined]
            tasks = [asyncio.create_task(whole(engine, max_tokens=150)) for _ in range(6)]
            while sum(state.running for state in engine.states()) < 6:
                await asyncio.sleep(0.01)
            begun_s = time.monotonic()
            if fault == "machine":
                assert machine.engines is not None
                machine.engines.stop(signal.SIGTERM)
            else:
                victim.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            dead = [error for error in ended if isinstance(error, EngineDead)]
            assert len(dead) == 3 and sum(isinstance(one, str) for one in ended) == 3
            assert time.monotonic() - begun_s < 6
            _, state = engine.states()
            assert state.reason is not None and (fault != "kill" or "signal 9" in state.reason)
            assert len(await whole(engine)) > 0
            assert survivors([victim], 4.0) == []
            assert machine.ended() == (0 if fault == "machine" else 1)

    asyncio.run(main())


def test_an_engine_that_another_api_process_has_given_up_is_ended(meeting: Meeting) -> None:
    """The process that owns it cannot see that it hangs: it has no requests there itself."""
    spec = spec_of(1, 1, step_timeout_s=0.4)

    async def main() -> None:
        joining = serving(spec, meeting, far(spec, 1), num_processes=1)
        async with joining as (owner, (machine,)):
            here, _ = owner.hosts
            (victim,) = [child for child in children() if child.pid != here.pid]  # type: ignore[attr-defined]
            own, there = owner.addresses_for(0)
            number = descriptor_of(there)
            assert number is not None
            addresses = [own, f"{DESCRIPTOR}{os.dup(number)}"]
            other = await AsyncEngine.attach(addresses, spec, process=0)
            owner.hand_over()
            try:
                victim.send_signal(signal.SIGSTOP)
                asked = (whole(other) for _ in range(2))
                ended = await asyncio.gather(*asked, return_exceptions=True)
                assert sorted(type(one).__name__ for one in ended) == ["EngineDead", "str"]
                assert owner.given_up() == {} and survivors([victim], 0.1) == [victim]
                owner.give_up(other.given_up())
                assert "--engine-step-timeout" in owner.given_up()[1][1]
                assert await asyncio.to_thread(survivors, [victim], 4.0) == []
                assert machine.ended() == 1
            finally:
                await other.shutdown()

    asyncio.run(main())


def test_engines_end_with_their_server(meeting: Meeting) -> None:
    """The server's connections end without a word, as when it is killed."""
    spec = spec_of(0, 1)
    with JoinServer(spec, meeting, num_processes=0) as server:
        machine = Machine(meeting, far(spec, 0))
        (engine,) = engines_of(server)
        deadline_s = time.monotonic() + LIMIT_S
        while not (found := children()):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        engine._control.shutdown(socket.SHUT_RDWR)
        begun_s = time.monotonic()
        assert machine.ended() == 1
        assert survivors(found, 1.0) == []
        assert time.monotonic() - begun_s < 2.0
        engine.stop(0.0)


def test_who_does_not_belong_is_told_and_the_server_waits_on(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(1, 2)
    longer = msgspec.structs.replace(spec.schedule, max_model_tokens=77)
    with JoinServer(spec, meeting, num_processes=0), ExitStack() as stack:
        told = refused(meeting, far(spec, 1, schedule=longer))
        assert "--max-model-len: engine 1 (process" in told
        assert f"is 77 there and {spec.schedule.max_model_tokens} at the server" in told
        assert "is not expected; the server is waiting for engines 1 and 2" in refused(
            meeting, far(spec, 0)
        )
        other = msgspec.structs.replace(spec, num_engines=4)
        assert refused(meeting, far(other, 1)).startswith("--data-parallel-size:")
        with monkeypatch.context() as patch:
            patch.setattr("dovetail_plugins.joining.join.JoinRequest", _old_request)
            assert "runs dovetail 0.0.1, and the server" in refused(meeting, far(spec, 1))
        wrong = meeting_at(meeting.port, data_parallel_secret="not the same text")
        assert "has another secret" in refused(wrong, far(spec, 1))
        (first,) = join_engines(meeting, far(spec, 1))
        stack.callback(first.close)
        assert "engine 1 has joined already: engine 1 (process" in refused(meeting, far(spec, 1))
        with pytest.raises(ConfigError, match=r"the port \d+ is in use"):
            JoinServer(spec, meeting, num_processes=0)


def _old_request(**fields: Any) -> JoinRequest:
    return JoinRequest(**fields, version="0.0.1")


def test_waiting_has_an_end_and_says_who_came(meeting: Meeting) -> None:
    spec = spec_of(1, 2)
    short = meeting_at(meeting.port, data_parallel_join_timeout=0.3)
    assert "no server listened at 127.0.0.1:" in refused(short, far(spec, 1))
    with JoinServer(spec, short, num_processes=1) as server:
        (first,) = join_engines(short, far(spec, 1))
        with pytest.raises(
            ConfigError, match=r"1 of 2 engines .* within 0.3 s; still missing: engine 2"
        ):
            engines_of(server)
        first.close()
        with pytest.raises(ConfigError, match="0 of 2 engines"):
            engines_of(server)
        (again,) = join_engines(short, far(spec, 1))  # one that has gone may come again
        again.close()
    nowhere = meeting_at(1, data_parallel_address="192.0.2.1")
    with pytest.raises(ConfigError, match=r"--data-parallel-address: cannot listen at 192.0.2.1:1"):
        JoinServer(spec, nowhere, num_processes=0)


OWN = {
    "run": {
        "device", "block_tokens", "max_rows", "max_step_tokens", "max_model_tokens", "attention",
        "rank", "num_threads", "thread_spin_us", "pins_threads", "processors", "is_eager",
        "async_steps", "graph_sizes", "uses_fused_ops", "compiles", "memory_share",
        "shows_progress", "load_options", "offload_bytes", "ops", "communicator",
        "rank_processors", "expert_placement", "expert_balance", "all2all", "engines_folder",
        "transfer", "encoder_mode", "encodings_bytes", "halves", "tokenizer", "tokenizer_path",
    },
    "cache": {
        "num_blocks", "memory_bytes", "memory_share", "hash_algorithm", "host_bytes",
        "keeps_windows", "hash_tokens",
    },
    "schedule": {
        "max_step_tokens", "uses_chunked_prefill", "long_prefill_tokens", "async_steps",
        "max_partial", "max_long_partial", "long_prompt_tokens", "num_stages",
        "encoder_rows", "kept_encoder_rows",
    },
    "": {
        "scheduler", "executor", "worker", "tokenizer", "tokenizer_path", "platform",
        "stat_loggers", "hooks", "served_names", "request_seed", "max_logprobs",
        "processor_pattern", "default_sampling", "log_level", "log_config", "log_format",
        "log_prefix", "max_restarts",
        "sets_up_log", "step_timeout_s", "reply_timeout_s", "socket_dir", "checks_invariants",
        "media", "sounds", "io_processor", "takes_vectors",
        "engine", "shares", "elsewhere", "variables", "router", "adapter_search", "events",
    },
}  # fmt: skip
"""What machines may differ in: it concerns one of them alone, or is told elsewhere in the spec."""


def test_every_fact_of_an_engine_is_compared_or_its_machines_own() -> None:
    spec = spec_of()
    for part, own in OWN.items():
        facts = getattr(spec, part) if part else spec
        named = {name.partition(".")[0] if not part else name.partition(".")[2] for name in COMPARED
                 if not part or name.startswith(f"{part}.")}  # fmt: skip
        compared = {name.partition(".")[0] for name in named}
        fields = set(facts.__struct_fields__)
        assert fields - compared == own, part
    flags = {flag.spelling for flag in config_flags().values()}
    assert set(COMPARED.values()) - {""} <= flags


def test_a_server_takes_what_follows_from_the_device_from_the_first_engine(
    meeting: Meeting,
) -> None:
    spec = spec_of(0, 2)
    half = msgspec.structs.replace(spec.run, kv_dtype="float16")
    with JoinServer(spec, meeting, num_processes=0):
        (first,) = join_engines(meeting, far(spec, 0, run=half))
        assert refused(meeting, far(spec, 1)).startswith("--kv-cache-dtype: engine 1")
        first.close()


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_secret_is_proved_by_both_sides() -> None:
    for secret, is_known in ((SECRET, True), (b"another", False)):
        with connected() as (listener, peer):
            found: list[Any] = []

            def knock(
                one: socket.socket = peer, known: bytes = secret, found: list[Any] = found
            ) -> None:
                try:
                    respond(one, known)
                    send_message(one, JoinReply(num_more=3))
                except WrongSecret as error:
                    found.append(error)

            thread = threading.Thread(target=knock)
            thread.start()
            if is_known:
                challenge(listener, SECRET)
                assert receive_message(listener, JoinReply).num_more == 3
            else:
                with pytest.raises(WrongSecret):
                    challenge(listener, SECRET)
            thread.join()
            assert bool(found) is not is_known
    with connected() as (listener, peer):
        listener.sendall(os.urandom(32) + bytes(32))  # one that does not know the secret
        with pytest.raises(WrongSecret):
            respond(peer, SECRET)
