"""Several engines behind an LLM: answers in order and equal to one engine's, faults, the end."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import msgspec
import psutil
import pytest

from dovetail.errors import ConfigError, EngineAsleep, EngineDead
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineShare, EngineSpec, Selection
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.router import RoutedRequest, Router, RouterFacts
from dovetail.llm.llm import LLM
from dovetail_testing.fakes.engine import fake_spec
from support.inside import engine_of, hosts_of


class Turns(Router):
    """Takes the engines in turn."""

    info = Info(summary="test router")

    def __init__(self, options: Any, facts: RouterFacts) -> None:
        self._count = 0

    def choose(self, request: RoutedRequest, engines: Any) -> int:
        """Return the next engine."""
        self._count += 1
        number: int = engines[self._count % len(engines)].number
        return number


def spec_of(**changes: Any) -> EngineSpec:
    return msgspec.structs.replace(
        fake_spec(options={"delay_s": 0.005}),
        num_engines=2,
        shares=(EngineShare(engine=0), EngineShare(engine=1)),
        router=Selection(kind="router", name="turns", target=f"{__file__}:Turns"),
        can_sleep=True,
        **changes,
    )


def texts_of(llm: LLM) -> list[list[str]]:
    params = [SamplingParams(max_tokens=i + 1, temperature=1, n=1 + i % 2) for i in range(8)]
    prompts = [chr(97 + i) * (i + 1) for i in range(8)]
    results = llm.generate(prompts, params, use_tqdm=False)
    assert [result.prompt for result in results] == prompts
    return [[one.text for one in result.outputs] for result in results]


def test_answers_are_those_of_one_engine_and_a_lost_engine_is_not_the_end() -> None:
    alone = msgspec.structs.replace(fake_spec(), request_seed=5)
    with LLM.from_spec(alone) as one:
        wanted = texts_of(one)
    before = set(psutil.Process().children())

    async def within_a_loop() -> None:  # as in a notebook
        with LLM.from_spec(spec_of(request_seed=5)) as llm:
            assert texts_of(llm) == wanted
            bad, good = llm.generate(
                ["a FAULT", "fine"], SamplingParams(max_tokens=5), use_tqdm=False
            )
            assert "NaN" in str(bad.error) and good.error is None
            llm.sleep()
            assert llm.is_sleeping
            with pytest.raises(EngineAsleep):
                llm.generate("x", use_tqdm=False)
            llm.wake_up()
            assert not llm.is_sleeping
            first, second = hosts_of(llm)
            os.kill(first.pid, signal.SIGKILL)
            params = SamplingParams(max_tokens=40)
            ended = llm.generate(["x"] * 6, params, use_tqdm=False)
            assert any(result.error is None for result in ended)
            os.kill(second.pid, signal.SIGKILL)
            with pytest.raises(EngineDead):
                llm.generate(["x"] * 4, params, use_tqdm=False)

    asyncio.run(within_a_loop())
    assert set(psutil.Process().children()) <= before


def test_an_interrupted_call_leaves_the_engines_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM.from_spec(spec_of()) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(engine_of(llm), "step", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["x"] * 3, SamplingParams(max_tokens=200), use_tqdm=False)
        assert not engine_of(llm).has_work
        (result,) = llm.generate("x", SamplingParams(max_tokens=3), use_tqdm=False)
        assert len(result.outputs[0].token_ids) == 3
    llm.close()
    with pytest.raises(ConfigError, match="engines of other machines come to a server"):
        LLM.from_spec(msgspec.structs.replace(fake_spec(), num_engines=2, elsewhere=(1,)))


def _interrupted() -> None:
    raise KeyboardInterrupt
