"""KVConnector: blocks come back as they were written, or not at all; keys, ranks and identities do
not mix."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from dovetail.interfaces.data.sealed_block import seal, unsealed
from dovetail.interfaces.kv_connector import KVConnector, RanksFor, StoreFacts
from dovetail.registry.options import options_for
from dovetail_testing.contract import requires, without

BLOCK_BYTES = 64 + 640
FACTS = StoreFacts(identity="a" * 64, block_bytes=BLOCK_BYTES, model="model")
FAR_MORE = 4000
"""Blocks of more bytes than the samples' options have room for."""


@pytest.fixture
def connector(plugin: Any, tmp_path: Path) -> KVConnector:
    """Return the connector with its options for a try."""
    return new_connector(plugin, tmp_path)


def new_connector(plugin: Any, folder: Path) -> KVConnector:
    """Return a new connector in a folder."""
    connector: KVConnector = plugin(options_for(plugin, plugin.sample_options(str(folder))))
    return connector


def key_of(number: int) -> bytes:
    """Return a key such as the engine's."""
    return bytes((number % 3,)) + random.Random(number).randbytes(32)


def block_of(number: int, rank: int = 0) -> memoryview:
    """Return a sealed block."""
    block = bytearray(64) + random.Random(-number - rank).randbytes(BLOCK_BYTES - 64)
    seal(block, key_of(number), rank)
    return memoryview(block)


def facts(**changes: Any) -> StoreFacts:
    """Return facts that differ in something."""
    values: dict[str, Any] = {name: getattr(FACTS, name) for name in FACTS.__struct_fields__}
    return StoreFacts(**(values | changes))


def only(ranks: tuple[int, ...]) -> RanksFor:
    """Return a choice of these ranks, of however many."""

    def chosen(num_ranks: int) -> tuple[int, ...]:
        del num_ranks
        return ranks

    return chosen


class TestKVConnector:
    """Both sides of a connector, in one process."""

    kind = "kv_connector"

    @without("fake")
    def test_reads_what_was_written(self, connector: KVConnector) -> None:
        """A block is read as it was written, and the index has it."""
        index, store = connector.index(FACTS), connector.store(FACTS)
        assert index.keep(key_of(1))
        store.write(key_of(1), block_of(1))
        assert index.has(key_of(1))
        assert bytes(store.read(key_of(1)) or b"") == bytes(block_of(1))

    @without("fake")
    def test_unknown_keys_are_not_there(self, connector: KVConnector) -> None:
        """A key that was never written is neither in the index nor readable."""
        index, store = connector.index(FACTS), connector.store(FACTS)
        assert index.keep(key_of(1))
        store.write(key_of(1), block_of(1))
        assert not index.has(key_of(2))
        assert store.read(key_of(2)) is None

    def test_a_block_is_kept_once(self, connector: KVConnector) -> None:
        """A stored block is not to be written again."""
        index = connector.index(FACTS)
        index.keep(key_of(1))
        assert not index.keep(key_of(1))

    @without("fake")
    def test_keys_do_not_mix(self, connector: KVConnector) -> None:
        """Each of many keys has its own block."""
        index, store = connector.index(FACTS), connector.store(FACTS)
        for number in range(40):
            assert index.keep(key_of(number))
            store.write(key_of(number), block_of(number))
        for number in random.Random(0).sample(range(40), 40):
            assert bytes(store.read(key_of(number)) or b"") == bytes(block_of(number))

    @without("fake")
    def test_ranks_do_not_mix(self, connector: KVConnector) -> None:
        """Each of two ranks has its own part of a block."""
        stores = [connector.store(facts(rank=rank, world_size=2)) for rank in range(2)]
        for rank, store in enumerate(stores):
            store.write(key_of(1), block_of(1, rank))
        for rank, store in enumerate(stores):
            assert bytes(store.read(key_of(1)) or b"") == bytes(block_of(1, rank))

    @requires("survives")
    def test_identities_do_not_mix(self, plugin: Any, tmp_path: Path) -> None:
        """Blocks of another identity are neither had nor read, even under the same key."""
        index, store = (
            new_connector(plugin, tmp_path).index(FACTS),
            new_connector(plugin, tmp_path).store(FACTS),
        )
        assert index.keep(key_of(1))
        store.write(key_of(1), block_of(1))
        other = facts(identity="b" * 64)
        assert not new_connector(plugin, tmp_path).index(other).has(key_of(1))
        assert new_connector(plugin, tmp_path).store(other).read(key_of(1)) is None

    @requires("survives")
    def test_a_restart_finds_what_was_there(self, plugin: Any, tmp_path: Path) -> None:
        """A new index has, and a new store reads, what was written before."""
        first = new_connector(plugin, tmp_path)
        index, store = first.index(FACTS), first.store(FACTS)
        for number in range(5):
            assert index.keep(key_of(number))
            store.write(key_of(number), block_of(number))
        store.close()
        index.close()
        again = new_connector(plugin, tmp_path)
        index, store = again.index(FACTS), again.store(FACTS)
        for number in range(5):
            assert index.has(key_of(number))
            assert bytes(store.read(key_of(number)) or b"") == bytes(block_of(number))

    @without("fake")
    def test_dropped_blocks_are_gone(self, connector: KVConnector) -> None:
        """A dropped block is not read, and dropping a missing one harms nothing."""
        store = connector.store(FACTS)
        store.write(key_of(1), block_of(1))
        store.drop(key_of(1))
        store.drop(key_of(2))
        assert store.read(key_of(1)) is None

    @without("fake")
    def test_lost_blocks_are_wanted_again(self, connector: KVConnector) -> None:
        """A block that could not be read is written again when it becomes full again."""
        index = connector.index(FACTS)
        assert index.keep(key_of(1))
        index.lost((key_of(1),))
        assert index.keep(key_of(1))

    @without("fake")
    def test_what_the_index_has_can_be_read(self, connector: KVConnector) -> None:
        """With far more blocks than there is room for, all blocks in the index are readable; the
        rest is dropped when it says so."""
        index, store = connector.index(FACTS), connector.store(FACTS)
        for number in range(FAR_MORE):
            if index.keep(key_of(number)):
                store.write(key_of(number), block_of(number))
            for dropped in index.take_dropped():
                store.drop(dropped)
        had = [number for number in range(FAR_MORE) if index.has(key_of(number))]
        assert FAR_MORE - 1 in had
        for number in had[:: max(1, len(had) // 50)]:
            block = store.read(key_of(number))
            assert block is not None and bytes(block) == bytes(block_of(number))

    @requires("shared")
    def test_engines_find_each_others_blocks(self, plugin: Any, tmp_path: Path) -> None:
        """What one engine has written another has and reads."""
        one, other = facts(engine_id="one"), facts(engine_id="other")
        index = new_connector(plugin, tmp_path).index(other)
        new_connector(plugin, tmp_path).store(one).write(key_of(1), block_of(1))
        assert index.has(key_of(1))
        block = new_connector(plugin, tmp_path).store(other).read(key_of(1))
        assert bytes(block or b"") == bytes(block_of(1))

    @requires("peers")
    def test_engines_ask_each_other(self, plugin: Any, tmp_path: Path) -> None:
        """Another engine with the same identity finds and gets what one engine has written; one
        with another identity does not, and an engine that has ended gives nothing."""
        one, other = facts(engine=0, engine_id="one"), facts(engine=1, engine_id="other")
        giver, keys = new_connector(plugin, tmp_path).store(one), [key_of(1), key_of(2)]
        giver.write(key_of(1), block_of(1))
        index, taker = (
            new_connector(plugin, tmp_path).index(other),
            new_connector(plugin, tmp_path).store(other),
        )
        source = index.look(keys, {})
        assert source and [index.has(key) for key in keys] == [True, False]
        found: dict[bytes, Any] = {}
        for key, parts in taker.gather(keys, source, lambda num_ranks: (0,)):
            found[key] = parts and [bytes(part.block) for part in parts]
        assert found == {key_of(1): [bytes(block_of(1))], key_of(2): None}
        stranger = new_connector(plugin, tmp_path).index(facts(engine=2, identity="b" * 64))
        assert not stranger.look(keys, {}) and not stranger.has(key_of(1))
        giver.close()
        assert not index.look(keys, {}) and not index.has(key_of(1))
        for side in (index, taker, stranger):
            side.close()

    @requires("pieces")
    def test_pieces_go_to_other_ranks(self, plugin: Any, tmp_path: Path) -> None:
        """One rank gets the pieces of two, each with the rank that wrote it, and only from the
        requested ranks; an engine with pieces of another length finds nothing."""
        ranks = [facts(engine=0, rank=rank, world_size=2, unit_tokens=8) for rank in range(2)]
        givers = [new_connector(plugin, tmp_path).store(one) for one in ranks]
        for rank, giver in enumerate(givers):
            giver.write(key_of(1), block_of(1, rank))
        taker_facts = facts(engine=1, unit_tokens=8)
        index = new_connector(plugin, tmp_path).index(taker_facts)
        taker = new_connector(plugin, tmp_path).store(taker_facts)
        source = index.look([key_of(1)], {})
        assert source and index.has(key_of(1))
        for wanted in ((0, 1), (1,)):
            ((key, parts),) = taker.gather([key_of(1)], source, only(wanted))
            received = [(part.rank, part.num_ranks, bytes(part.block)) for part in parts or ()]
            assert key == key_of(1)
            assert received == [(rank, 2, bytes(block_of(1, rank))) for rank in wanted]
        other = new_connector(plugin, tmp_path).index(facts(engine=2, unit_tokens=16))
        assert not other.look([key_of(1)], {}) and not other.has(key_of(1))
        for found in (index, other):
            found.close()
        for store in (taker, *givers):
            store.close()

    @requires("slow_look_up")
    def test_look_ups_in_another_thread(self, connector: KVConnector) -> None:
        """One thread looks blocks up while another stores and writes them."""
        index, store = connector.index(FACTS), connector.store(FACTS)
        faults: list[Exception] = []
        is_over = threading.Event()

        def look() -> None:
            try:
                while not is_over.is_set():
                    for number in range(200):
                        index.has(key_of(number))
            except Exception as error:
                faults.append(error)

        looker = threading.Thread(target=look)
        looker.start()
        for number in range(200):
            if index.keep(key_of(number)):
                store.write(key_of(number), block_of(number))
            index.lost((key_of(number // 2),))
            index.take_dropped()
        is_over.set()
        looker.join()
        assert not faults

    @requires("fake")
    def test_what_is_made_up_is_sealed(self, connector: KVConnector) -> None:
        """A fake's blocks are whole."""
        index, store = connector.index(FACTS), connector.store(FACTS)
        assert index.has(key_of(1))
        block = store.read(key_of(1))
        assert block is not None and unsealed(block, key_of(1), FACTS.rank) is not None

    @without("fake")
    def test_reading_beside_writing(self, connector: KVConnector) -> None:
        """While one thread writes another reads whole blocks or none."""
        store = connector.store(FACTS)
        torn: list[int] = []
        is_over = threading.Event()

        def read() -> None:
            while not is_over.is_set():
                for number in range(30):
                    block = store.read(key_of(number))
                    if block is not None and bytes(block) != bytes(block_of(number)):
                        torn.append(number)

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(30):
            store.write(key_of(number), block_of(number))
        is_over.set()
        reader.join()
        assert not torn

    def test_ends_twice(self, connector: KVConnector) -> None:
        """Both sides may be closed twice."""
        index, store = connector.index(FACTS), connector.store(FACTS)
        for side in (index, store, index, store):
            side.close()
