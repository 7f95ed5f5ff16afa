"""What may differ between the flags of two ranks that a launcher started, and what may not."""

from __future__ import annotations

import logging
import socket
from typing import Any

import msgspec
import pytest

from dovetail.config.rules.machine.launch import launch_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec
from dovetail_plugins.executors import _launched_ranks
from dovetail_plugins.executors._launched_ranks import RankFacts, difference
from dovetail_plugins.executors._ray_places import fair_share
from dovetail_plugins.joining.peers import JoinRequest
from dovetail_testing.tiny.transformer import tiny_run


def test_a_launcher_that_cannot_be_reached_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_launched_ranks, "JOIN_LIMIT_S", 0.1)
    caplog.set_level(logging.INFO, "dovetail_plugins")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]  # nobody listens there any more
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    told = rf"rank 1 cannot reach the launcher's store at 127\.0\.0\.1:{port}: .*refused"
    with pytest.raises(ConfigError, match=told) as caught:
        _launched_ranks._store(launch_of(place | ranks), is_first=False)
    assert "MASTER_PORT" in str(caught.value.where)
    assert f"waiting for the launcher's store at 127.0.0.1:{port}" in caplog.text


def request(**changes: Any) -> JoinRequest:
    run = msgspec.structs.replace(tiny_run(), **changes)
    facts = msgspec.msgpack.encode(RankFacts(run, has_engine=False))
    return JoinRequest(kind="rank", number=1, launch="x", process=7, host="there", facts=facts)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rank": RankSpec(rank=1, world_size=2), "processors": (1,), "num_threads": 3},
        {"model": msgspec.structs.replace(tiny_run().model, path="/elsewhere/model")},
    ],
)
def test_what_belongs_to_one_machine_may_differ(changes: dict[str, Any]) -> None:
    assert difference(tiny_run(), request(**changes)) is None


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
    found = difference(run, request(**changes))
    assert found is not None and found.startswith("rank 1 (process 7 on there)") and told in found


@pytest.mark.parametrize(
    ("nodes", "size", "free", "each"),
    [((8,), 2, 8, 4), ((8, 4), 3, 12, 4), ((8, 4), 4, 12, 2), ((2,), 2, 1, 1), ((6, 6), 2, 6, 3)],
)
def test_cpus_of_a_cluster_are_shared_out(
    nodes: tuple[int, ...], size: int, free: int, each: int
) -> None:
    assert fair_share(nodes, size, free) == each
