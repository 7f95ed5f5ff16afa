"""--profiler-config: what it says of traces, and what it asks for in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.config.config import Config
from dovetail.config.rules.observability.profiling import profile_spec
from dovetail.errors import ConfigError
from dovetail.interfaces.data.profile import ProfileSpec
from dovetail.interfaces.data.spec import EngineShare, Selection
from dovetail.interfaces.executor import Executor
from dovetail_testing.fakes.async_engine import fake_spec
from dovetail_testing.fakes.engine import FakeExecutor


class Alone(FakeExecutor):
    capabilities = Executor.capabilities


def spec_of(given: Any, executor: type[Executor] = FakeExecutor) -> ProfileSpec | None:
    target = f"{executor.__module__}:{executor.__qualname__}"
    chosen = Selection(kind="executor", name="fake", target=target)
    return profile_spec(Config.from_fields({"profiler_config": given}).observability, chosen)


def test_the_keys_of_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = ProfileSpec(folder_path=str(tmp_path / "traces"))
    for given in ("./traces", "traces", {"torch_profiler_dir": "traces", "profiler": "torch"}):
        assert spec_of(given) == here
    noted = {f"torch_profiler_{name}": True for name in
             ("record_shapes", "with_memory", "with_stack", "with_flops", "use_gzip")}  # fmt: skip
    whole = ProfileSpec(
        folder_path=here.folder_path,
        with_shapes=True,
        with_memory=True,
        with_stacks=True,
        with_flops=True,
        is_compressed=True,
    )
    assert spec_of({"torch_profiler_dir": "traces", **noted}) == whole
    for nothing in ({}, {"profiler": None}, {"profiler": None, "torch_profiler_dir": None}):
        assert spec_of(nothing) is None


@pytest.mark.parametrize(
    ("given", "where", "told"),
    [
        ({"profiler": "torch"}, ".torch_profiler_dir", "no folder"),
        ({"torch_profiler_dir": ""}, ".torch_profiler_dir", "no folder"),
        ({"torch_profiler_dir": "a", "profiler": "cuda"}, ".profiler", 'no profiler "cuda"'),
        ({"torch_profiler_dir": "a", "max_iterations": 5}, ".max_iterations", "5 is not"),
        ({"torch_profiler_dir": "a", "ignore_frontend": False}, ".ignore_frontend", "False is not"),
        ({"torch_profiler_dir": "a", "torch_dir": "b"}, ".torch_dir", "no such key"),
        (
            {"torch_profiler_dir": "a", "torch_profiler_use_gzip": 3},
            ".torch_profiler_use_gzip",
            "3",
        ),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], where: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        spec_of(given)
    assert caught.value.where == f"--profiler-config{where}"
    assert caught.value.fix


def test_an_executor_that_does_not_reach_its_ranks_is_refused() -> None:
    with pytest.raises(ConfigError, match="executor fake does not reach all ranks"):
        spec_of("traces", Alone)


def test_every_engine_knows_its_number() -> None:
    spec = fake_spec()
    run = msgspec.structs.replace(spec.run, profile=ProfileSpec(folder_path="/a"))
    shares = tuple(EngineShare(engine=number) for number in (2, 3))
    several = msgspec.structs.replace(spec, run=run, shares=shares, num_engines=4)
    profiles = [one.run.profile for one in several.each()]
    assert [profile.engine for profile in profiles if profile is not None] == [2, 3]
