"""Ranks: which sizes divide a model, which cores each rank has, how they exchange tensors."""

from __future__ import annotations

import sys
from typing import ClassVar

import pytest

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.rules.machine import cores, platform
from dovetail.config.rules.parallel.ranks import (
    cached_model,
    check_division,
    check_executor,
    rank_processors,
    rank_spec,
    select_communicator,
)
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec, Selection
from dovetail_testing.contract import model_spec
from dovetail_testing.tiny.transformer import TinyModel

WHOLE = Selection(kind="model", name="tiny", target="dovetail_testing.tiny.transformer:TinyModel")
DIVIDED = Selection(kind="model", name="divided", target=f"{__file__}:DividedModel")


class DividedModel(TinyModel):
    """A model that claims to divide."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"tensor_parallel"})


def spec_of(**fields: object) -> RankSpec:
    return rank_spec(Config.from_fields(fields).parallel)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "told"),
    [
        (8, 2, 2, None),
        (8, 2, 4, None),
        (12, 4, 6, "4 KV heads can neither be divided over 6 ranks nor repeated"),
        (12, 4, 8, "12 attention heads cannot be divided evenly over 8 ranks"),
    ],
)
def test_heads_are_divided_or_repeated(
    heads: int, kv_heads: int, size: int, told: str | None
) -> None:
    model = model_spec(num_heads=heads, num_kv_heads=kv_heads)
    rank = spec_of(tensor_parallel_size=size)
    if told is None:
        check_division(model, DIVIDED, rank)
        assert cached_model(model, rank).num_kv_heads == max(1, kv_heads // size)
        return
    with pytest.raises(ConfigError, match=told) as caught:
        check_division(model, DIVIDED, rank)
    assert caught.value.where == "--tensor-parallel-size"
    assert caught.value.fix == "use one of 1, 2, 4, 12."


def test_a_model_that_cannot_be_divided_is_told() -> None:
    check_division(model_spec(), WHOLE, RankSpec())
    with pytest.raises(ConfigError, match="tiny cannot be divided"):
        check_division(model_spec(), WHOLE, spec_of(tensor_parallel_size=2))


def test_an_executor_of_one_rank_is_told() -> None:
    pytest.importorskip("dovetail_plugins")
    uni = registry.choose("executor", "uni")
    check_executor(uni, RankSpec())
    check_executor(registry.choose("executor", "mp"), spec_of(tensor_parallel_size=2))
    with pytest.raises(ConfigError, match="uni runs one rank, not 2"):
        check_executor(uni, spec_of(tensor_parallel_size=2))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds processes to CPUs")
class TestCores:
    """Which processors each rank has, on an imagined machine of four cores with two threads."""

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cores, "usable_processors", lambda: set(range(8)))
        monkeypatch.setattr(cores, "core_of", lambda cpu: str(cpu % 4))
        monkeypatch.setattr(platform, "core_of", lambda cpu: str(cpu % 4))
        monkeypatch.setattr(platform, "usable_processors", lambda: set(range(8)))
        monkeypatch.setattr(platform, "quota_cores", lambda: None)

    def of(self, size: int, text: str | None = None) -> tuple[tuple[int, ...], ...]:
        config = Config.from_fields({"tensor_parallel_size": size, "cpu_cores": text})
        return rank_processors(config.device, rank_spec(config.parallel), on_cores=True)

    def test_whole_cores_are_divided(self) -> None:
        assert self.of(1) == ()
        assert self.of(2) == ((0, 1, 4, 5), (2, 3, 6, 7))
        assert self.of(3) == ((0, 4), (1, 5), (2, 3, 6, 7))
        assert self.of(2, "0-1,5") == ((0,), (1, 5))

    def test_lists_are_taken_as_they_are(self) -> None:
        assert self.of(2, "0-2|5") == ((0, 1, 2), (5,))
        assert cores.chosen_cores("0-2|5") == (0, 1, 2, 5)

    @pytest.mark.parametrize(("text", "count"), [("3", 1), ("0,4", 1), ("0-1,5", 2), (None, 4)])
    def test_fewer_cores_than_ranks_are_refused(self, text: str | None, count: int) -> None:
        told = rf"5 ranks need a core each, and this process may use {count}\."
        with pytest.raises(ConfigError, match=told):
            self.of(5, text)

    def test_nobind_binds_nothing(self) -> None:
        assert self.of(8, "nobind") == ()
        assert cores.chosen_cores("nobind") == ()

    @pytest.mark.parametrize(
        ("size", "text", "told"),
        [
            (2, "0|1|2", "3 lists of CPUs for 2 ranks"),
            (1, "0|1", "2 lists of CPUs for 1 rank"),
            (2, "0-3|3-4", "3 is in several ranks' lists"),
            (2, "0|9", "may not use 9"),
            (5, None, "5 ranks need a core each, and this process may use 4"),
        ],
    )
    def test_what_cannot_be_is_told(self, size: int, text: str | None, told: str) -> None:
        with pytest.raises(ConfigError, match=told) as caught:
            self.of(size, text)
        assert caught.value.fix


def test_the_communicator_fits_the_device() -> None:
    pytest.importorskip("dovetail_plugins")
    cpu = registry.load("platform", "cpu")(None)

    def chosen(**fields: object) -> str | None:
        config = Config.from_fields({"tensor_parallel_size": 2, **fields})
        made = select_communicator(config.parallel, config.plugin, cpu, rank_spec(config.parallel))
        return None if made is None else made.name

    assert chosen(tensor_parallel_size=1) is None
    assert chosen() == "shared_memory"
    assert chosen(disable_custom_all_reduce=True) == "gloo"
    assert chosen(communicator="gloo") == "gloo"
