"""Memory the CPU worker offers, and what an executor's process holds after shutdown."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import psutil
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.config.rules.machine import platform
from dovetail.interfaces.data.step import StepResult
from dovetail.interfaces.plugin import Info, NoOptions
from dovetail.interfaces.stats import StepStats
from dovetail.runner.model_runner import ModelRunner
from dovetail_kernels.cpu.library import missing_reason, usable_cores
from dovetail_plugins.workers import cpu
from dovetail_plugins.workers.cpu import CpuWorker
from dovetail_plugins.workers.cuda import CudaWorker
from dovetail_testing.tiny.transformer import tiny_layout, tiny_run
from support.fake_device import FakeDevice
from support.inside import calls_of, core_of, runner_of


def test_a_container_limits_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = CpuWorker(NoOptions(), tiny_run())
    monkeypatch.setattr(platform, "memory_limits", list)
    unlimited = worker.free_bytes()
    assert 0 < unlimited < psutil.virtual_memory().total
    monkeypatch.setattr(platform, "memory_limits", lambda: [(3_000_000_000, 1_499_999_995)])
    assert worker.free_bytes() <= 1_500_000_005 - cpu.MARGIN_BYTES


def test_cuda_says_why_not() -> None:
    assert CudaWorker.why_not("cpu") == ["runs on cuda, not on cpu"]
    reason = CudaWorker.unavailable_reason()
    assert reason is None or "Fix:" in reason


class _Memory:
    """A GPU of 1000 MiB, 300 of them in use, whose largest steps take 100."""

    def __init__(self) -> None:
        self.measured: list[int] = []

    def release(self) -> None:
        pass

    def free_and_total(self) -> tuple[int, int]:
        return 700 << 20, 1000 << 20

    def peak_of(self, function: Callable[[], object]) -> int:
        result = function()
        self.measured.append(len(result.rows) if isinstance(result, StepResult) else 0)
        return 100 << 20


class CudaOnCpu(CudaWorker):
    """The worker of GPUs on a CPU: the device, what it says of its memory and its graphs are
    played."""

    def _open_device(self) -> torch.device:
        self.memory = _Memory()  # type: ignore[assignment]
        return torch.device("cpu")

    def load(self) -> None:
        self._runner = ModelRunner(self.run, self.device, FakeDevice())
        self._runner.load()


@pytest.mark.parametrize(("share", "mebibytes"), [(0.9, 244), (0.5, 0), (1.0, 344)])
def test_a_gpu_gives_the_cache_what_is_left(share: float, mebibytes: int) -> None:
    """The share of all memory, less what is in use, the margin and a largest step."""
    run = msgspec.structs.replace(tiny_run(max_rows=5), memory_share=share)
    worker = CudaOnCpu(NoOptions(), run)
    worker.load()
    assert worker.free_bytes() == mebibytes << 20
    assert worker.memory.measured == [5]  # type: ignore[attr-defined]
    worker.allocate(tiny_layout(list(worker.kv_layers())))
    worker.shutdown()


@pytest.mark.parametrize("is_async", [False, True])
def test_an_engine_one_ahead_says_the_same(is_async: bool) -> None:
    """The whole engine over the played GPU: graphs, steps ahead, rows that come and go."""
    prompts = [[5 + i, 7, 9 + i, 11] * (1 + i % 4) for i in range(9)]
    wishes = [
        SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=3, max_tokens=9, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.8, seed=5, max_tokens=6, ignore_eos=True, bad_words=["a"]),
    ]
    params = [wishes[i % 3] for i in range(9)]

    def answers(**flags: object) -> list[tuple[int, ...]]:
        with LLM(max_num_seqs=4, **flags) as llm:
            watched(core_of(llm))
            found = [tuple(o.outputs[0].token_ids) for o in llm.generate(prompts, params)]
            calls = calls_of(runner_of(llm))
            assert (getattr(calls, "num_replays", 0) > 0) == ("worker_cls" in flags)
            return found

    told: list[StepStats] = []

    def watched(core: Any) -> None:
        told.clear()
        plain = core.step

        def step() -> Any:
            output = plain()
            told.extend([output.stats] if output.stats and output.stats.step_tokens else [])
            return output

        core.step = step

    worker = f"{__file__}:AheadOnCpu"
    backend = "support.fake_device:CapturableReference"
    begun_s = time.perf_counter()
    played = answers(worker_cls=worker, attention_backend=backend, async_scheduling=is_async)
    assert len(told) > 14 and all(stats.device_s > 0 for stats in told)
    # The device's work and its pauses lie one behind the other.
    assert sum(s.device_s + s.exposed_s for s in told) < time.perf_counter() - begun_s
    assert sum(stats.exposed_s > 0 for stats in told) > len(told) // 2
    assert played == answers(attention_backend=backend, enforce_eager=True)


class AheadOnCpu(CudaOnCpu):
    """The same, chosen for a CPU."""

    info = Info(summary="test worker: a GPU played on a CPU", devices=("cpu",))

    @classmethod
    def unavailable_reason(cls) -> str | None:
        return None

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        return CpuWorker.why_not(query)


WAITING = """
import os, sys, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import torch
from dovetail.interfaces.plugin import NoOptions
from dovetail_testing.tiny.transformer import tiny_run
from dovetail_plugins.workers.cpu import CpuWorker

numbers = torch.ones(1 << 18)

def processor_time():
    began_s = time.process_time()
    for _ in range(30):
        numbers.add_(1)
        time.sleep(0.02)
    return time.process_time() - began_s

torch.set_num_threads(2)
processor_time()
alone = processor_time()
worker = CpuWorker(NoOptions(), tiny_run())
print(alone, processor_time())
worker.shutdown()
worker.shutdown()
"""


@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core: no thread waits for another")
@pytest.mark.skipif(missing_reason() is not None, reason="no native kernels, whose cores it takes")
@pytest.mark.parametrize("told", ["", pytest.param("ACTIVE", marks=pytest.mark.full_only)])
def test_idle_threads_of_a_torch_that_was_there_before_sleep(told: str) -> None:
    """They wait awake for milliseconds otherwise, and do where a user has said so."""
    rest = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    env = rest | ({"OMP_WAIT_POLICY": told} if told else {})
    run = subprocess.run([sys.executable, "-c", WAITING], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    alone, beside = map(float, run.stdout.split())
    assert (beside < alone / 3) == (not told), run.stdout
