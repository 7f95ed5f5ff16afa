"""The prefix-aware router and what engines say of their caches: read without a gap, in place of
guesses, dropped where something was missed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from plugins.test_prefix_decisions import View

from dovetail.engine.client.cache_news import CacheNews, feeds_of
from dovetail.engine.client.routing import Routing
from dovetail.engine.messages import EngineCondition
from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.kv_event_publisher import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    EventsSpec,
)
from dovetail.interfaces.router import RoutedRequest, RouterFacts
from dovetail.registry.options import options_for
from dovetail_plugins.kv_event_publishers.zmq import ZmqPublisher
from dovetail_plugins.routers import prefix_aware
from dovetail_plugins.routers._known_blocks import KnownBlocks
from dovetail_plugins.routers.prefix_aware import PrefixAware
from dovetail_testing.contract import default_options
from support.inside import known_blocks_of, num_published, replace_router

SIZE = 16
PROMPT = tuple(3 + i * i % 90 for i in range(200))


def stored(tokens: Sequence[int], *, start: int = 0, salt: int = 0) -> BlockStored:
    """Return the event of the whole blocks of a prompt, from the `start`-th on."""
    names = [hash((salt, tuple(tokens[:end]))) for end in range(SIZE, len(tokens) + 1, SIZE)]
    return BlockStored(
        block_hashes=tuple(names[start:]),
        parent_block_hash=names[start - 1] if start else None,
        token_ids=tuple(tokens[start * SIZE : len(names) * SIZE]),
        block_size=SIZE,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


def test_blocks_are_known_as_a_plain_set_of_prefixes_knows_them() -> None:
    chance, known = Random(5), KnownBlocks(3, SIZE)
    plain: list[dict[int, tuple[int, ...]]] = [{}, {}, {}]
    prompts = [PROMPT[: chance.randrange(20, 200)] for _ in range(9)]
    prompts += [(*one[: 16 * chance.randrange(1, 5)], *PROMPT[::-1]) for one in prompts]
    for _ in range(600):
        engine, prompt = chance.randrange(3), chance.choice(prompts)
        event, own = stored(prompt), plain[engine]
        match chance.randrange(6):
            case 0 | 1 | 2:
                known.take(engine, [event])
                for place, name in enumerate(event.block_hashes, 1):
                    own[name] = tuple(prompt[: place * SIZE])
            case 3 | 4:
                gone = tuple(own)[-chance.randrange(1, 9) :]
                known.take(engine, [BlockRemoved(block_hashes=gone, medium=None)])
                for name in gone:
                    del own[name]
            case 5 if chance.random() < 0.1:
                known.take(engine, [AllBlocksCleared()])
                own.clear()
        asked = chance.choice(prompts)
        found = {e: n for n, bits in known.found(asked) for e in range(3) if bits >> e & 1}
        assert found == {e: n for e in range(3) if (n := held(plain[e], asked))}
    for engine in range(3):
        known.forget(engine)
    assert not known._root.after and len(known) == 0


def held(own: dict[int, tuple[int, ...]], prompt: Sequence[int]) -> int:
    """Return how many tokens of a prompt lie in whole blocks from its start on."""
    prefixes, count = set(own.values()), 0
    while count + SIZE < len(prompt) and tuple(prompt[: count + SIZE]) in prefixes:
        count += SIZE
    return count


def test_blocks_of_several_salts_adapters_and_unknown_parents() -> None:
    known = KnownBlocks(1, SIZE)
    known.take(0, [stored(PROMPT), stored(PROMPT, salt=1)])
    known.take(0, [BlockRemoved(block_hashes=stored(PROMPT).block_hashes, medium=None)])
    assert known.found(PROMPT) == [(192, 1)]
    known.forget(0)
    known.take(0, [stored(PROMPT, start=2)])
    known.take(0, [BlockRemoved(block_hashes=(1, 2), medium=None)])
    assert known.found(PROMPT) == [] and len(known) == 0


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> PrefixAware:
    facts = RouterFacts(num_engines=2, block_tokens=SIZE, cache_tokens=1 << 12, max_rows=8)
    return PrefixAware(default_options(PrefixAware), facts)


def chosen(router: PrefixAware, prompt: Sequence[int], salt: str = "") -> set[int]:
    """Return where requests go, with engines that are equally busy."""
    request = RoutedRequest(tuple(prompt), salt)
    return {router.choose(request, [View(number=n) for n in range(2)]) for _ in range(4)}


def test_what_an_engine_says_counts_for_more_than_a_guess(
    router: PrefixAware, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(prefix_aware.time, "monotonic", lambda: clock[0])
    for engine in range(2):
        router.learn(engine, (AllBlocksCleared(),))
    (first,) = chosen(router, PROMPT)  # what was sent just now counts as on its way
    router.learn(1 - first, (stored(PROMPT),))
    clock[0] += 10
    assert chosen(router, PROMPT) == {1 - first}
    router.learn(1 - first, (BlockRemoved(block_hashes=stored(PROMPT).block_hashes, medium=None),))
    router.learn(first, (stored(PROMPT[:100]),))
    clock[0] += 10
    assert chosen(router, PROMPT) == {first}
    clock[0] += 10
    router.learn(first, (AllBlocksCleared(),))
    router.learn(1 - first, (stored(PROMPT[:40]),))
    assert chosen(router, PROMPT) == {1 - first}


def test_an_engine_of_which_something_was_missed_is_guessed_again(router: PrefixAware) -> None:
    router.learn(0, (AllBlocksCleared(), stored(PROMPT)))
    router.learn(0, None)
    assert len(known_blocks_of(router)) == 0 and known_blocks_of(router).informed == 0
    assert len(chosen(router, PROMPT)) == 1
    salted = chosen(router, PROMPT, "mine")
    router.learn(1 - min(salted), (AllBlocksCleared(), stored(PROMPT)))
    assert chosen(router, PROMPT, "mine") == salted  # whose blocks are whose nobody tells


def test_the_router_of_a_process_hears_the_news_before_it_chooses(router: PrefixAware) -> None:
    engines: Any = [
        SimpleNamespace(
            **vars(View(number=n)), is_alive=True, condition=EngineCondition(), is_stalled=False
        )
        for n in range(2)
    ]
    routing = Routing(SimpleNamespace(router=None), engines)  # type: ignore[arg-type]
    news = [(n, (AllBlocksCleared(), *([stored(PROMPT)] if n else []))) for n in range(2)]

    class News:
        def tell(self, told: PrefixAware) -> None:
            while news:
                told.learn(*news.pop())

        def close(self) -> None:
            news.append((0, ()))

    replace_router(routing, router, News())
    first = SimpleNamespace(cache_salt="", adapter="")
    asked: Any = SimpleNamespace(prompt_ids=PROMPT, requests=[first], request_id="r")
    assert [routing.home_of(asked).number for _ in range(3)] == [1, 1, 1]
    routing.close()
    assert news == [(0, ())]


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield name


class Learner:
    """Notes what it learns."""

    def __init__(self) -> None:
        self.learnt: list[tuple[int, tuple[Event, ...] | None]] = []

    def learn(self, engine: int, events: tuple[Event, ...] | None) -> None:
        self.learnt.append((engine, events))


def numbered(number: int) -> EventBatch:
    event = BlockRemoved(block_hashes=(number,), medium=None)
    return EventBatch(ts=0.0, events=(AllBlocksCleared(),) if number == 0 else (event,))


def until(news: CacheNews, learner: Any, count: int) -> list[Any]:
    """Return what was learnt, once it is so much."""
    deadline_s = time.monotonic() + 60
    while len(learner.learnt) < count:
        assert time.monotonic() < deadline_s, f"{len(learner.learnt)} of {count} have come"
        news.tell(learner)
        time.sleep(0.005)
    return [
        n and (n[0].block_hashes[0] if n[0] != AllBlocksCleared() else 0) for _, n in learner.learnt
    ]


def test_news_come_without_a_gap_and_over_a_restart(folder: str) -> None:
    plain: dict[str, Any] = ZmqPublisher.sample_options(folder)
    publisher = ZmqPublisher(options_for(ZmqPublisher, plain), 0)
    for number in range(300):
        publisher.publish(numbered(number))
    time.sleep(0.1)  # the first ones are sent before anybody listens
    target = "dovetail_plugins.kv_event_publishers.zmq:ZmqPublisher"
    selection = Selection(kind="kv_event_publisher", name="zmq", target=target, options=plain)
    feeds = feeds_of(EventsSpec(publisher=selection), 2)
    assert set(feeds) == {0, 1} and not feeds_of(None, 2)
    learner, news = Learner(), CacheNews(feeds)
    try:
        while not learner.learnt:  # until the subscription has arrived
            publisher.publish(numbered(num_published(publisher)))
            news.tell(learner)  # type: ignore[arg-type]
            time.sleep(0.01)
        sent = num_published(publisher)
        assert until(news, learner, sent) == list(range(sent))
        publisher.close()
        publisher = ZmqPublisher(options_for(ZmqPublisher, plain), 0)
        publisher.publish(numbered(0))
        deadline_s = time.monotonic() + 60
        while None not in [events for _, events in learner.learnt]:
            assert time.monotonic() < deadline_s
            publisher.publish(numbered(num_published(publisher)))
            news.tell(learner)  # type: ignore[arg-type]
            time.sleep(0.01)
        count = num_published(publisher)
        assert until(news, learner, sent + 1 + count) == [*range(sent), None, *range(count)]
    finally:
        news.close()
        publisher.close()


def test_without_a_replay_a_gap_is_told(folder: str) -> None:
    plain = {"endpoint": f"ipc://{folder}/events"}
    options = options_for(ZmqPublisher, plain)
    publisher, feed = ZmqPublisher(options, 0), ZmqPublisher.feed(options, 0)
    assert feed is not None
    read: list[Any] = []
    deadline_s = time.monotonic() + 60
    while len(read) < 3:
        assert time.monotonic() < deadline_s
        publisher.publish(numbered(num_published(publisher)))
        time.sleep(0.01)
        read += feed.read()
    assert read[0] is None or read[0] == (AllBlocksCleared(),)
    assert None not in read[1:]
    assert ZmqPublisher.feed(options_for(ZmqPublisher, {"endpoint": "tcp://far:1"}), 0) is None
    feed.close()
    publisher.close()
