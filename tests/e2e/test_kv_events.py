"""Events of the prefix cache, read by a subscriber that is written from the documented payload:
100,000 of them with `make test-full`, else a fifth."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError
from dovetail.interfaces.kv_event_publisher import BlockRemoved, BlockStored, EventBatch
from dovetail_plugins.kv_event_publishers.zmq import ZmqOptions, ZmqPublisher, address_of
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import (
    announces_blocks,
    core_of,
    event_publisher_of,
    hashes_of,
    kept_by,
    num_lost,
    num_published,
    pool_of,
    queue_of,
)
from support.samples import sample_of

pytestmark = pytest.mark.e2e

ENGINE: dict[str, Any] = {
    "max_model_len": 128,
    "dtype": "float32",
    "block_size": 8,
    "use_tqdm_on_load": False,
}
GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
END = (-1).to_bytes(8, "big", signed=True)
WAIT_MS = 30_000
READ_S = 100.0
"""Far more than anything here takes: the machine may be busy."""


class Subscriber:
    """Follows the numbers, and asks again for those that it has missed.

    It compares what comes under a number that it has: the same batch came twice (live, and in the
    answer to what was missed), another one is of an engine that was started anew. `known` are the
    batches that it had before it was started anew itself.
    """

    def __init__(self, folder: str, topic: str = "", known: Sequence[bytes] = ()) -> None:
        self.context = zmq.Context()
        self.topic = topic.encode()
        self.known = list(known)
        self.earlier: list[bytes] = []
        self.num_replays = 0
        self.num_restarts = 0
        self.events = self.context.socket(zmq.SUB)
        self.events.setsockopt(zmq.RCVHWM, 0)
        self.events.setsockopt(zmq.SUBSCRIBE, self.topic)
        self.events.connect(f"ipc://{folder}/events")
        self.replay = self.context.socket(zmq.DEALER)
        self.replay.connect(f"ipc://{folder}/replay")

    @property
    def next(self) -> int:
        return len(self.known)

    @property
    def batches(self) -> list[Any]:
        """Everything, also of engines before this one."""
        return [msgspec.msgpack.decode(payload) for payload in (*self.earlier, *self.known)]

    def begin_anew(self) -> None:
        """Follow another engine from its first number on."""
        self.num_restarts += 1
        self.earlier += self.known
        self.known = []

    def take(self, number: int, payload: bytes) -> None:
        """Take in the next batch, or one that says that the engine is another one."""
        if number < self.next and payload != self.known[number]:
            self.begin_anew()
        if number == self.next:
            self.known.append(payload)

    def catch_up(self) -> None:
        """Take in all that is still kept from the next number on. The last one that it has is
        asked for too: an engine that does not have it is another one."""
        first = max(self.next - 1, 0)
        kept = self.asked(first)
        if self.next and (not kept or kept[0] != (first, self.known[first])):
            self.begin_anew()
            kept = self.asked(0)
        for number, payload in kept:
            self.take(number, payload)

    def asked(self, first: int) -> list[tuple[int, bytes]]:
        """Return what the engine still has from a number on."""
        self.num_replays += 1
        self.replay.send_multipart((b"", first.to_bytes(8, "big")))
        kept = []
        while True:
            assert self.replay.poll(WAIT_MS), "no replay"
            _, number, payload = self.replay.recv_multipart()
            if number == END:
                return kept
            kept.append((int.from_bytes(number, "big"), payload))

    def read(self, until: int) -> None:
        """Read up to this number of batches, or until the engine was started anew."""
        restarts, deadline_s = self.num_restarts, time.monotonic() + READ_S
        while self.next < until and self.num_restarts == restarts:
            assert time.monotonic() < deadline_s, f"{self.next} of {until} batches have come"
            if not self.events.poll(200):
                self.catch_up()
                continue
            topic, number, payload = self.events.recv_multipart()
            assert topic == self.topic
            if int.from_bytes(number, "big") > self.next:
                self.catch_up()
            self.take(int.from_bytes(number, "big"), payload)

    def close(self) -> None:
        self.context.destroy(linger=0)


def removals(numbers: Iterable[int], per_batch: int) -> Iterator[EventBatch]:
    """Yield batches of events whose hashes count up without a gap."""
    for number in numbers:
        hashes = range(number * per_batch, (number + 1) * per_batch)
        events = tuple(BlockRemoved(block_hashes=(one,), medium="GPU") for one in hashes)
        yield EventBatch(ts=0.0, events=events, data_parallel_rank=0)


def check_numbers(batches: list[Any], count: int) -> None:
    """Check that hashes count up to this number; what is told is the first that does not."""
    found = [event[1][0] for batch in batches for event in batch[1]]
    wrong = next((at for at, number in enumerate(found) if number != at), None)
    assert wrong is None, f"event {wrong} is number {found[wrong or 0]}"
    assert len(found) == count


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("model"), "LlamaForCausalLM"))


def publishing(folder: str, **keys: Any) -> dict[str, Any]:
    addresses = {"endpoint": f"ipc://{folder}/events", "replay_endpoint": f"ipc://{folder}/replay"}
    named = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv"}
    return {"kv_events_config": {**named, **addresses, **keys}}


def zmq_options(folder: str, **keys: Any) -> ZmqOptions:
    events, replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
    return ZmqOptions(endpoint=events, replay_endpoint=replay, **keys)


def wait_for(is_so: Callable[[], bool]) -> None:
    """Wait until something is so. Raises: AssertionError after a long time"""
    deadline_s = time.monotonic() + READ_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come to be so"
        time.sleep(0.01)


class Cache:
    """What a router knows of an engine's cache: hash -> parent and tokens."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}

    def follow(self, batches: list[Any]) -> None:
        for batch in batches:
            _ts, events, _engine = batch
            for event in events:
                self.take(event)

    def take(self, event: list[Any]) -> None:
        match event:
            case ["BlockStored", hashes, parent, tokens, size, None, medium, lora_name]:
                assert (size, medium, lora_name) == (8, "CPU", None)
                assert len(tokens) == size * len(hashes)
                for place, own in enumerate(hashes):
                    assert own not in self.blocks, "a block that is there was stored"
                    assert parent is None or parent in self.blocks
                    content = tuple(tokens[place * size : (place + 1) * size])
                    self.blocks[own] = (parent, content)
                    parent = own
            case ["BlockRemoved", hashes, "CPU"]:
                for own in hashes:
                    del self.blocks[own]
            case ["AllBlocksCleared"]:
                self.blocks.clear()
            case _:
                raise AssertionError(f"an unknown event: {event}")

    def has(self, tokens: list[int]) -> bool:
        """Return whether full blocks of these tokens are there, from the start."""
        parent: int | None = None
        for start in range(0, len(tokens) - len(tokens) % 8, 8):
            content = tuple(tokens[start : start + 8])
            found = [own for own, block in self.blocks.items() if block == (parent, content)]
            if not found:
                return False
            (parent,) = found
        return True


def test_a_router_knows_what_the_engine_holds(model: str, folder: str) -> None:
    flags = publishing(folder) | {"num_gpu_blocks_override": 18}
    with (
        LLM(model=model, **ENGINE, **flags) as llm,
        contextlib.closing(Subscriber(folder, "kv")) as one,
    ):
        core, cache = core_of(llm), Cache()
        prompts = [[3 + (n * 7 + i * i) % 60 for i in range(40)] for n in range(12)]
        for prompt in prompts:
            llm.generate([prompt], GREEDY, use_tqdm=False)
        sent = event_publisher_of(core)
        one.read(until=num_published(sent))
        cache.follow(one.batches)
        index = hashes_of(pool_of(core.cache), 0)
        assert set(cache.blocks) == {int.from_bytes(key[:8], "big") for key in index}
        assert cache.has(prompts[-1]) and not cache.has(prompts[0])
        assert {batch[2] for batch in one.batches} == {0}
        core.reset_prefix_cache()
        one.read(until=num_published(sent))
        assert one.batches[-1][1] == [["AllBlocksCleared"]]


def test_events_over_a_restart_without_a_gap(folder: str) -> None:
    num_batches, per_batch = sample_of(10_000, 2_000), 10
    options = zmq_options(folder, buffer_steps=num_batches, topic="kv")
    with contextlib.ExitStack() as open_ones:
        publisher = ZmqPublisher(options, 0)
        open_ones.callback(publisher.close)
        one = Subscriber(folder, "kv")
        open_ones.callback(one.close)
        for number, batch in enumerate(removals(range(num_batches), per_batch)):
            publisher.publish(batch)
            if number == num_batches // 3:
                one.read(until=num_batches // 5)
                one.close()  # and what comes meanwhile is missed
        again = Subscriber(folder, "kv", known=one.known)
        open_ones.callback(again.close)
        again.read(until=num_batches)
        assert again.num_replays >= 1 and again.num_restarts == one.num_restarts == 0
        check_numbers(again.batches, num_batches * per_batch)


def test_events_over_a_restart_of_the_engine(folder: str) -> None:
    per_batch, half = 10, sample_of(5_000, 1_000)
    options = zmq_options(folder, buffer_steps=half, topic="kv")
    with contextlib.ExitStack() as open_ones:
        one = Subscriber(folder, "kv")
        open_ones.callback(one.close)
        for numbers in (range(half), range(half, 2 * half)):
            publisher = ZmqPublisher(options, 0)
            open_ones.callback(publisher.close)
            for batch in removals(numbers, per_batch):
                publisher.publish(batch)
            while one.num_restarts < (numbers.start > 0):
                one.read(until=one.next + 1)
            one.read(until=half)
            publisher.close()
        assert one.num_restarts == 1
        check_numbers(one.batches, 2 * half * per_batch)


def test_what_was_missed_comes_whole_over_a_narrow_socket(folder: str) -> None:
    options = zmq_options(folder, hwm=1, topic="kv")
    with contextlib.ExitStack() as open_ones:
        publisher = ZmqPublisher(options, 0)
        open_ones.callback(publisher.close)
        count = sample_of(5000, 500)
        for batch in removals(range(count), 20):
            publisher.publish(batch)
        one = Subscriber(folder, "kv")
        open_ones.callback(one.close)
        wait_for(lambda: queue_of(publisher).empty())
        one.read(until=count)
        check_numbers(one.batches, count * 20)


def test_an_engine_begins_by_saying_that_nothing_is_cached(model: str, folder: str) -> None:
    with (
        LLM(model=model, **ENGINE, **publishing(folder)),
        contextlib.closing(Subscriber(folder, "kv")) as one,
    ):
        one.read(until=1)
        assert one.batches[0][1] == [["AllBlocksCleared"]]


def test_a_queue_that_is_full_shows_as_a_gap(folder: str) -> None:
    options = zmq_options(folder, max_queue_size=5)
    with contextlib.closing(ZmqPublisher(options, 0)) as publisher:
        for batch in removals(range(5000), 1):
            publisher.publish(batch)
        assert num_lost(publisher) > 0
        wait_for(lambda: len(kept_by(publisher)) == 5000 - num_lost(publisher))
        publisher.publish(next(removals([5000], 1)))
        wait_for(lambda: kept_by(publisher)[-1][0] == 5000)
        # Every batch has the number of its place, so that the gap is where those lost would be.
        for number, payload in kept_by(publisher):
            assert msgspec.msgpack.decode(payload)[1] == [["BlockRemoved", [number], "GPU"]]


def test_the_last_batches_alone_are_kept(folder: str) -> None:
    with contextlib.closing(ZmqPublisher(zmq_options(folder, buffer_steps=3), 0)) as publisher:
        for batch in removals(range(50), 1):
            publisher.publish(batch)
        wait_for(lambda: bool(kept_by(publisher)) and kept_by(publisher)[-1][0] == 49)
        assert [number for number, _ in kept_by(publisher)] == [47, 48, 49]


def test_an_end_waits_for_no_backlog(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail_plugins.kv_event_publishers.zmq.CLOSE_WAIT_S", 0.2)
    publisher = ZmqPublisher(zmq_options(folder), 0)
    encode = publisher._encoder.encode

    class Slow:
        def encode(self, batch: EventBatch) -> bytes:
            time.sleep(0.05)
            return encode(batch)

    monkeypatch.setattr(publisher, "_encoder", Slow())
    for batch in removals(range(500), 1):
        publisher.publish(batch)
    publisher.close()
    thread = publisher._thread
    thread.join(10)
    assert not thread.is_alive() and queue_of(publisher).qsize() > 400


def test_the_payload_is_the_documented_one() -> None:
    stored = BlockStored(
        block_hashes=(7, 8),
        parent_block_hash=None,
        token_ids=(1, 2, 3, 4),
        block_size=2,
        lora_id=None,
        medium="GPU",
        lora_name="poet",
    )
    batch = EventBatch(ts=1.5, events=(stored,), data_parallel_rank=3)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(batch))
    event = ["BlockStored", [7, 8], None, [1, 2, 3, 4], 2, None, "GPU", "poet"]
    assert plain == [1.5, [event], 3]


def test_engines_have_addresses_each() -> None:
    assert address_of("tcp://*:5557", 0) == "tcp://*:5557"
    assert address_of("tcp://*:5557", 2) == "tcp://*:5559"
    assert address_of("ipc:///tmp/x", 1) == "ipc:///tmp/x_dp1"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"publisher": "pigeon"}, "pigeon"),
        ({"colour": 1}, "colour"),
        ({"endpoint": "tcp://nowhere"}, "cannot be opened"),
    ],
)
def test_what_cannot_work_says_why(model: str, folder: str, keys: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LLM(model=model, **ENGINE, **publishing(folder, **keys))


def test_nothing_is_told_unless_asked_to(model: str, folder: str) -> None:
    off = publishing(folder, enable_kv_cache_events=False)
    with LLM(model=model, **ENGINE, **off) as llm:
        assert not announces_blocks(core_of(llm))
    assert not list(Path(folder).iterdir())
    null = {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}}
    with LLM(model=model, **ENGINE, **null) as llm:
        llm.generate([[3, 4, 5]], GREEDY, use_tqdm=False)


def test_events_are_for_this_machine_alone_unless_an_address_is_given() -> None:
    from dovetail_plugins.kv_event_publishers.zmq import ZmqOptions, ZmqPublisher

    engine = 1 + secrets.randbelow(9000)  # its number moves the port away from other tests'
    publisher = ZmqPublisher(ZmqOptions(), engine)
    try:
        opened = publisher._events.getsockopt_string(zmq.LAST_ENDPOINT)
        assert opened == f"tcp://127.0.0.1:{5557 + engine}"
    finally:
        publisher.close()
    assert ZmqPublisher.feed(ZmqOptions(), 0, host="10.0.0.7") is None
