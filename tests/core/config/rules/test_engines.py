"""Several engines: which of them run here, and what of the machine each gets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.machine import cores, platform
from dovetail.config.rules.machine.cores import divided
from dovetail.config.rules.parallel import engines
from dovetail.config.rules.parallel.engines import (
    check_engines,
    engine_numbers,
    engine_shares,
    engines_elsewhere,
)
from dovetail.config.rules.parallel.joining import DEFAULT_PORT, meeting_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import EngineShare
from dovetail.interfaces.platform import Platform, PlatformDefaults
from dovetail.interfaces.plugin import Info


class Cores(Platform):
    """Computes on the processors."""

    info = Info(summary="test platform")
    capabilities = frozenset({"host_cores"})

    def defaults(self) -> PlatformDefaults:
        """Return nothing of note."""
        return PlatformDefaults(worker="none")


class Cards(Cores):
    """Has devices of its own."""

    capabilities = frozenset()

    def engine_variables(self, place: int, count: int, num_ranks: int) -> Mapping[str, str]:
        """Return the card's number."""
        return {"CARD": f"{place} of {count}"}


def config_of(**fields: Any) -> Config:
    return Config.from_fields({f"data_parallel_{key}": value for key, value in fields.items()})


def check(config: Config) -> None:
    check_engines(config.parallel, config.frontend)


def shares_of(config: Config, platform: Platform, num_ranks: int) -> tuple[EngineShare, ...]:
    return engine_shares(config.parallel, config.device, platform, num_ranks)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores of two hardware threads: 0 and 4, 1 and 5, ..."""
    for module in (platform, engines, cores):
        monkeypatch.setattr(module, "usable_processors", lambda: set(range(8)))
    for module in (platform, cores):
        monkeypatch.setattr(module, "core_of", lambda processor: str(processor % 4))
    monkeypatch.setattr(platform, "quota_cores", lambda: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({}, range(1)),
        ({"size": 4}, range(4)),
        ({"size": 4, "size_local": 4, "start_rank": 0}, range(4)),
        ({"size": 4, "rank": 2}, range(2, 3)),
        ({"size": 4, "rank": 0, "size_local": 1}, range(1)),
        ({"size": 8, "hybrid_lb": True, "start_rank": 4, "size_local": 2}, range(4, 6)),
        ({"size": 8, "hybrid_lb": True, "start_rank": 6}, range(6, 8)),
        ({"size": 2, "hybrid_lb": True}, range(2)),
    ],
)
def test_which_engines_run_here(fields: dict[str, Any], numbers: range) -> None:
    assert engine_numbers(config_of(**fields).parallel) == numbers


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"size": 4, "rank": 4}, "--data-parallel-rank: there is no rank 4 among 4. Fix: use 0 to"),
        ({"rank": 1}, "--data-parallel-rank: there is no rank 1 among 1."),
        ({"size": 4, "rank": 1, "size_local": 2}, "--data-parallel-size-local: with --data-para"),
        ({"size": 4, "rank": 1, "hybrid_lb": True}, "--data-parallel-hybrid-lb: it balances over"),
        (
            {"size": 4, "hybrid_lb": True, "start_rank": 3, "size_local": 2},
            "--data-parallel-size-local: 2 engines from rank 3 on are not among 4. Fix: use at "
            "most 1 engines here",
        ),
        ({"size": 4, "hybrid_lb": True, "start_rank": 4}, "start-rank: there is no rank 4 among 4"),
        ({"size": 4, "start_rank": 2}, "--data-parallel-start-rank: it says where"),
        ({"size": 2, "size_local": 3}, "--data-parallel-size-local: 3 engines are more than"),
        ({"size": 2, "size_local": 1}, "--data-parallel-address: engines of several machines"),
        ({"size": 2, "size_local": 1, "address": "h"}, "--data-parallel-secret: a secret that"),
        (
            {"size": 2, "size_local": 1, "address": "h", "secret": "short"},
            "must have 16 characters or more. Fix: set DOVETAIL_DATA_PARALLEL_SECRET",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(config_of(**fields))
    assert text in str(caught.value)


SECRET = "sixteen characters"


@pytest.mark.parametrize(
    ("fields", "here", "elsewhere"),
    [
        ({"size": 4, "size_local": 1}, range(1), range(1, 4)),
        ({"size": 1, "size_local": 0}, range(0), range(1)),
        ({"size": 4}, range(4), range(0)),
        ({"size": 4, "hybrid_lb": True, "size_local": 2}, range(2), range(0)),
        ({"size": 4, "rank": 2}, range(2, 3), range(0)),
        ({"size": 4, "start_rank": 1, "headless": True}, range(1, 4), range(0)),
        ({"size": 4, "start_rank": 1, "size_local": 2, "headless": True}, range(1, 3), range(0)),
    ],
)
def test_which_engines_run_elsewhere(fields: dict[str, Any], here: range, elsewhere: range) -> None:
    config = joined_config(**fields)
    check(config)
    assert (engine_numbers(config.parallel), engines_elsewhere(config.parallel)) == (
        here,
        elsewhere,
    )


def joined_config(**fields: Any) -> Config:
    """Return a config of a machine among several, which meet at an address."""
    plain = {key: fields.pop(key) for key in list(fields) if key in PLAIN}
    fields |= {"address": "::1", "secret": SECRET}
    named = {f"data_parallel_{key}": value for key, value in fields.items()}
    return Config.from_fields(named | plain)


PLAIN = ("headless", "api_server_count", "disable_frontend_multiprocessing")


def test_where_the_machines_meet() -> None:
    meeting = meeting_of(joined_config(size=2, size_local=1).parallel)
    assert (meeting.name, meeting.limit_s) == (f"[::1]:{DEFAULT_PORT}", 600)
    assert SECRET not in repr(meeting) and meeting.secret == SECRET.encode()
    other = meeting_of(joined_config(size=2, size_local=1, rpc_port=7, join_timeout=3).parallel)
    assert (other.port, other.limit_s) == (7, 3)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"rank": 1}, "--headless: --data-parallel-rank is for a server"),
        ({"hybrid_lb": True}, "--headless: --data-parallel-hybrid-lb is for a server"),
        ({"api_server_count": 2}, "--headless: --api-server-count is for a server"),
        ({"size_local": 3}, "--data-parallel-size-local: 3 engines from rank 0 on are not among 2"),
        ({"headless": False, "size_local": 1, "disable_frontend_multiprocessing": True},
         "each of 2 engines needs its own process"),
    ],
)  # fmt: skip
def test_flags_of_another_kind_of_process_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(joined_config(**({"size": 2, "headless": True} | fields)))
    assert text in str(caught.value)


@pytest.mark.usefixtures("machine")
def test_engines_that_are_not_bound_share_all_cores_and_lists_are_kept() -> None:
    def shares(text: str, size: int, num_ranks: int) -> tuple[Any, ...]:
        config = Config.from_fields({"data_parallel_size": size, "cpu_cores": text})
        return engine_shares(config.parallel, config.device, Cores(None), num_ranks)

    for num_ranks in (1, 2):
        found = shares("nobind", 2, num_ranks)
        assert [(one.processors, one.rank_processors) for one in found] == [((), ())] * 2
        assert [one.num_threads for one in found] == [4 // (2 * num_ranks)] * 2
    assert len(shares("nobind", 5, 1)) == 5  # more than cores
    assert [one.processors for one in shares("0,4|1-3", 2, 1)] == [(0, 4), (1, 2, 3)]
    found = shares("0|1|2|3", 2, 2)
    assert [one.rank_processors for one in found] == [((0,), (1,)), ((2,), (3,))]
    assert [one.processors for one in found] == [(0, 1), (2, 3)]
    with pytest.raises(ConfigError, match="there are 3 lists of CPUs for 2 ranks"):
        shares("0|1|2", 2, 1)


def test_several_engines_need_processes_and_no_address(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"data_parallel_size": 2, "disable_frontend_multiprocessing": True}
    with pytest.raises(ConfigError, match="each of 2 engines needs its own process"):
        check(Config.from_fields(fields))
    monkeypatch.setattr(engines, "launched", lambda config: True)
    with pytest.raises(ConfigError, match="a launcher starts the ranks of one engine, not of 2"):
        check(config_of(size=2))
    monkeypatch.undo()
    with caplog.at_level(logging.INFO, "dovetail.config"):
        check(config_of(size=2, address="10.0.0.1", rpc_port=13345))
    assert "--data-parallel-address has no effect" in caplog.text
    assert "--data-parallel-rpc-port has no effect" in caplog.text


@pytest.mark.usefixtures("machine")
def test_engines_share_the_cores() -> None:
    assert shares_of(config_of(size=1), Cores(None), 1) == ()
    first, second = shares_of(config_of(size=2), Cores(None), 1)
    assert (first.engine, first.processors, first.num_threads) == (0, (0, 1, 4, 5), 2)
    assert (second.engine, second.processors, second.num_threads) == (1, (2, 3, 6, 7), 2)
    shares = shares_of(config_of(size=3), Cores(None), 1)
    assert [share.processors for share in shares] == [(0, 4), (1, 5), (2, 3, 6, 7)]
    with pytest.raises(ConfigError, match=r"5 engines need a core each, .* may use 4"):
        shares_of(config_of(size=5), Cores(None), 1)
    first, second = shares_of(config_of(size=2), Cores(None), 2)
    assert first.rank_processors == ((0, 4), (1, 5))
    assert second.rank_processors == ((2, 6), (3, 7))
    assert (first.num_threads, second.num_threads) == (1, 1)
    with pytest.raises(ConfigError, match=r"2 engines need 4 cores each, .* may use 4"):
        shares_of(config_of(size=2), Cores(None), 4)


@pytest.mark.usefixtures("machine")
def test_a_quota_counts_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "quota_cores", lambda: 2)
    shares = shares_of(config_of(size=2), Cores(None), 1)
    assert [share.num_threads for share in shares] == [1, 1]
    with pytest.raises(ConfigError, match=r"use at most 2, or --cpu-cores nobind"):
        shares_of(config_of(size=3), Cores(None), 1)


@pytest.mark.usefixtures("machine")
def test_engines_on_devices_share_the_host_and_have_a_device_each() -> None:
    shares = shares_of(config_of(size=8, hybrid_lb=True, start_rank=6), Cards(None), 1)
    assert [share.engine for share in shares] == [6, 7]
    assert [share.variables for share in shares] == [{"CARD": "0 of 2"}, {"CARD": "1 of 2"}]
    assert [share.processors for share in shares] == [(), ()]


def test_parts_are_disjoint_and_whole() -> None:
    for count in range(1, 6):
        parts = divided(range(100, 107), count)
        assert sorted(number for part in parts for number in part) == list(range(100, 107))
        assert all(parts)
