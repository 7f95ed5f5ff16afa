"""What may differ between the flags of two ranks that a launcher started, and what may not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dovetail.interfaces.spec import RankSpec
from dovetail.ranks.door import Hello
from dovetail.testing.tiny import tiny_run
from dovetail_plugins.executors._launched_ranks import difference
from dovetail_plugins.executors._ray_places import fair_share


def hello(**changes: Any) -> Hello:
    run = msgspec.structs.replace(tiny_run(), **changes)
    payload = msgspec.msgpack.encode(run)
    return Hello(rank=1, channel="", process=7, host="there", run=payload)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rank": RankSpec(rank=1, world_size=2), "processors": (1,), "num_threads": 3},
        {"model": msgspec.structs.replace(tiny_run().model, path="/elsewhere/model")},
    ],
)
def test_what_belongs_to_one_machine_may_differ(changes: dict[str, Any]) -> None:
    assert difference(tiny_run(), hello(**changes)) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_rows": 99}, "max_rows is 99 there and"),
        ({"kv_dtype": "int8"}, "kv_dtype is 'int8' there and"),
        (
            {"model": msgspec.structs.replace(tiny_run().model, dtype="float16")},
            "model.dtype is 'float16' there and",
        ),
        ({"graph_sizes": (1, 2, 77)}, "graph_sizes.2 is 77 there and None at rank 0"),
        ({"rank": RankSpec(rank=1, world_size=2, num_stages=2)}, "rank.num_stages is 2 there and"),
    ],
)
def test_flags_may_not_differ(changes: dict[str, Any], told: str) -> None:
    run = msgspec.structs.replace(tiny_run(), graph_sizes=(1, 2))
    changes = {"graph_sizes": (1, 2)} | changes
    found = difference(run, hello(**changes))
    assert found is not None and found.startswith("rank 1 (process 7 on there)") and told in found


@pytest.mark.parametrize(
    ("nodes", "size", "free", "each"),
    [((8,), 2, 8, 4), ((8, 4), 3, 12, 4), ((8, 4), 4, 12, 2), ((2,), 2, 1, 1), ((6, 6), 2, 6, 3)],
)
def test_cpus_of_a_cluster_are_shared_out(
    nodes: tuple[int, ...], size: int, free: int, each: int
) -> None:
    assert fair_share(nodes, size, free) == each
