"""Placement: what the executor lets the config know of the machines of its ranks."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.parallel.placement import launched, max_restarts, places_ranks
from dovetail.config.rules.parallel.ranks import rank_spec
from dovetail.config.rules.selections import select_executor
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError, PluginError
from dovetail.interfaces.platform import PlatformDefaults

ray_actors = pytest.importorskip("dovetail_plugins.executors.ray_actors")
RAY = "dovetail_plugins.executors.ray_actors:RayExecutor"
LAUNCHED = "dovetail_plugins.executors.external_launcher:ExternalLauncherExecutor"
VARIABLES = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plugin be chosen; nothing here starts Ray."""
    monkeypatch.setattr(ray_actors.RayExecutor, "unavailable_reason", classmethod(lambda cls: None))


def config(executor: str | None, **fields: Any) -> Config:
    return Config.from_fields({"distributed_executor_backend": executor, **fields})


def test_ranks_here_are_all_on_this_machine() -> None:
    for executor in (None, "mp"):
        rank = rank_spec(config(executor, tensor_parallel_size=4).parallel)
        assert (rank.rank, rank.world_size, rank.local_size) == (0, 4, 4)
        assert launched(config(executor).parallel) is None and not places_ranks(
            config(executor).parallel
        )


def test_a_launcher_says_where_ranks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    rank = rank_spec(config(LAUNCHED, tensor_parallel_size=4).parallel)
    assert (rank.rank, rank.world_size, rank.local_rank, rank.local_size) == (3, 4, 1, 2)
    with pytest.raises(ConfigError, match="the launcher started 4 ranks") as caught:
        rank_spec(config(LAUNCHED, tensor_parallel_size=2).parallel)
    assert caught.value.where == "--tensor-parallel-size" and "use 4" in str(caught.value.fix)
    assert max_restarts(5, config("mp").parallel) == 5
    assert max_restarts(5, config(LAUNCHED).parallel) == 0


@pytest.mark.usefixtures("with_ray")
def test_ray_places_ranks_when_it_starts_them() -> None:
    rank = rank_spec(config(RAY, tensor_parallel_size=4).parallel)
    assert (rank.rank, rank.world_size, rank.local_size) == (0, 4, 1)
    assert places_ranks(config(RAY).parallel)


@pytest.mark.usefixtures("with_ray")
def test_ray_workers_use_nsight() -> None:
    flags, defaults = {"ray_workers_use_nsight": True}, PlatformDefaults(worker="cpu")
    plugins = PluginConfig()
    chosen = select_executor(config(RAY, **flags).parallel, plugins, defaults, 2)
    assert chosen.options["uses_nsight"] is True
    chosen = select_executor(config(RAY).parallel, plugins, defaults, 2)
    assert not chosen.options.get("uses_nsight")
    with pytest.raises(ConfigError, match="executor mp does not run Ray's workers") as caught:
        select_executor(config("mp", **flags).parallel, plugins, defaults, 2)
    assert caught.value.where == "--ray-workers-use-nsight"


def test_without_ray_the_name_says_what_to_install() -> None:
    if ray_actors.RayExecutor.unavailable_reason() is None:
        pytest.skip("ray is installed")
    with pytest.raises(PluginError) as caught:
        select_executor(config(RAY).parallel, PluginConfig(), PlatformDefaults(worker="cpu"), 2)
    assert 'pip install "dovetail-llm[ray]"' in caught.value.advice
