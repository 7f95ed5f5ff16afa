"""KVPolicy: a layout that keeps its room, and blocks that are never lost or owned twice."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.step import KVLayer
from dovetail.interfaces.kv_policy import KVPolicy, KVRoom
from dovetail_testing.simulate import SimSettings, Simulation

LAYERS = [
    KVLayer(name=f"layer.{i}", num_kv_heads=2, head_size=8, dtype="float32") for i in range(3)
]
BLOCK_TOKENS = 16
ENOUGH_BYTES = 1 << 20
WAYS = {
    "plain": SimSettings(num_steps=400, num_blocks=48),
    "windows": SimSettings(num_steps=400, num_blocks=64, windows=(None, 8)),
    "async": SimSettings(num_steps=400, num_blocks=48, async_steps=True),
    "unshared": SimSettings(num_steps=400, num_blocks=48, uses_prefix_cache=False),
}


@pytest.fixture
def policy(plugin: Any) -> KVPolicy:
    """Return the policy with its default options."""
    kv_policy: KVPolicy = plugin(plugin.Options())
    return kv_policy


class TestKVPolicy:
    """Clauses of KV policies."""

    kind = "kv_policy"

    def test_every_layer_has_its_place(self, policy: KVPolicy) -> None:
        """The layout has each layer once, in blocks of the requested number of tokens."""
        room = KVRoom(block_tokens=BLOCK_TOKENS, memory_bytes=ENOUGH_BYTES)
        layout = policy.plan(LAYERS, room)
        placed = sorted(name for group in layout.groups for name in group.layers)
        assert placed == [layer.name for layer in LAYERS], f"the groups have {placed}"
        message = f"blocks of {layout.block_tokens} tokens, asked for were {BLOCK_TOKENS}"
        assert layout.block_tokens == BLOCK_TOKENS, message

    def test_stays_within_the_memory(self, policy: KVPolicy) -> None:
        """All blocks of all tensors fit into the bytes that there are."""
        for memory in (ENOUGH_BYTES, 3 * ENOUGH_BYTES // 4, 100_000):
            room = KVRoom(block_tokens=BLOCK_TOKENS, memory_bytes=memory)
            layout = policy.plan(LAYERS, room)
            taken = layout.num_tensors * layout.num_blocks * layout.block_bytes
            assert taken <= memory, f"{layout.num_blocks} blocks take {taken} of {memory} bytes"

    def test_no_room_is_an_error(self, policy: KVPolicy) -> None:
        """A room for less than two blocks is refused with a fix."""
        with pytest.raises(ConfigError):
            policy.plan(LAYERS, KVRoom(block_tokens=BLOCK_TOKENS, memory_bytes=100))

    @pytest.mark.parametrize("way", WAYS)
    def test_every_request_ends(self, policy: KVPolicy, way: str) -> None:
        """With few blocks and random requests every request ends with its own tokens, and no block
        is lost, owned twice or read before it was written."""
        scheduler = registry.load("scheduler", "continuous")
        order = registry.load("scheduling_policy", "fcfs")
        order = order(order.Options())
        report = Simulation(scheduler, order, WAYS[way], kv_policy=policy).run()
        num_ended, num_taken = (
            sum(report.finished.values()),
            report.num_arrived - report.num_refused,
        )
        assert num_ended == num_taken, f"{num_ended} of {num_taken} requests ended"
