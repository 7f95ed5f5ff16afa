"""Context parallelism: which ranks divide a cache, how blocks and bytes are counted then."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.config.config import Config
from dovetail.config.rules.parallel.context_parallel import FLAG, check_context
from dovetail.config.rules.parallel.ranks import rank_spec
from dovetail.config.rules.steps.cache_size import Room, kv_bytes
from dovetail.engine.kv.kv_groups import plan_layout
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.data.step import KVLayer
from dovetail_plugins.ranks.layout import rank_run
from dovetail_testing.contract import model_spec
from dovetail_testing.tiny.transformer import tiny_run


def ranks(size: int, context: int) -> RankSpec:
    flags = {"tensor_parallel_size": size, "decode_context_parallel_size": context}
    return rank_spec(Config.from_fields(flags).parallel)


def test_ranks_that_divide_a_cache_are_some_of_those_that_divide_layers() -> None:
    assert ranks(4, 2).context_size == 2
    assert ranks(1, 1).context_size == 1
    for size, context in ((1, 2), (4, 3), (2, 4)):
        with pytest.raises(ConfigError, match=f"{context} ranks of {size} cannot") as caught:
            ranks(size, context)
        assert caught.value.where == FLAG


@pytest.mark.parametrize(
    ("kv_heads", "size", "context", "told"),
    [
        (1, 4, 4, None),
        (2, 4, 2, None),
        (4, 4, 1, None),
        (2, 8, 2, None),
        (4, 4, 2, "each of 4 KV heads is on 1 of 4 ranks"),
        (8, 4, 2, "each of 8 KV heads is on 1 of 4 ranks"),
        (2, 4, 4, "each of 2 KV heads is on 2 of 4 ranks, whose KV cache 4 ranks cannot divide"),
    ],
)
def test_only_repeated_heads_are_divided(
    kv_heads: int, size: int, context: int, told: str | None
) -> None:
    model = model_spec(num_heads=8, num_kv_heads=kv_heads)
    if told is None:
        check_context(model, ranks(size, context))
        return
    with pytest.raises(ConfigError, match=told) as caught:
        check_context(model, ranks(size, context))
    assert caught.value.fix.startswith("use a number that divides 2" if kv_heads == 2 else "leave")


def test_windows_divide_evenly() -> None:
    facts: dict[str, Any] = {"sliding_window": 6}
    model = model_spec(num_heads=8, num_kv_heads=1, hf_config=facts)
    check_context(model, ranks(8, 2))
    with pytest.raises(ConfigError, match="window of 6 tokens cannot be divided evenly over 4"):
        check_context(model, ranks(8, 4))


def test_as_many_bytes_hold_so_many_times_the_tokens() -> None:
    layers = [KVLayer(name="a", num_kv_heads=1, head_size=8, dtype="float32")]
    halves = [KVLayer(name="a", num_kv_heads=1, head_size=8, dtype="float32", context_size=2)]
    one = plan_layout(layers, block_tokens=16, memory_bytes=64_000)
    two = plan_layout(halves, block_tokens=32, memory_bytes=64_000)
    assert (two.num_blocks, two.block_bytes) == (one.num_blocks, one.block_bytes)
    assert two.num_blocks * two.block_tokens == 2 * one.num_blocks * one.block_tokens


def test_a_request_takes_its_part_of_each_rank() -> None:
    model = model_spec(num_kv_heads=1)
    whole = kv_bytes(model, "float32", 100, 8)
    assert kv_bytes(model, "float32", 100, 8, 4) * 4 == whole
    sizes: dict[str, Any] = {"model": model, "kv_dtype": "float32", "step_tokens": 8}
    one = Room(memory=whole, block_tokens=4, **sizes).largest(1000)
    four = Room(memory=whole, block_tokens=16, context_size=4, **sizes).largest(1000)
    assert (one, four) == (96, 384)


def test_each_rank_is_told() -> None:
    rank = RankSpec(world_size=4, tensor_size=4, context_size=2)
    run = msgspec.structs.replace(tiny_run(), rank=rank)
    run = rank_run(run, 3, local_rank=3, local_size=4)
    assert run.rank.context_size == 2
