"""Preemption by swap: block accounting by simulation, then a model whose answers must not change.

The simulation's runner remembers what lies in every block and host block, so a copy that is
missing, late or of the wrong block shows in the step that reads it.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from dovetail import LLM, SamplingParams
from dovetail.engine.kv.host_blocks import HostBlockAccounting
from dovetail.errors import ConfigError
from dovetail.interfaces.stats import StepStats
from dovetail.runner.kv import host_blocks
from dovetail_plugins.schedulers.continuous import ContinuousOptions, ContinuousScheduler
from dovetail_plugins.scheduling_policies.fcfs import Fcfs
from dovetail_plugins.scheduling_policies.priority import PriorityFirst
from dovetail_testing.simulate import SimReport, SimSettings, Simulation, simulate
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import core_of

TIGHT = ContinuousOptions(growth_blocks=0)
NUM_BLOCKS: dict[tuple[int | None, ...], int] = {(None,): 24, (None, 9): 40, (8,): 8}


def run(seed: int, **settings: Any) -> SimReport:
    policy = (PriorityFirst if seed % 2 else Fcfs)(None)
    made = SimSettings(seed=seed, arrival_rate=0.6, **settings)
    return simulate(ContinuousScheduler, policy, made, TIGHT)


@pytest.mark.parametrize("windows", NUM_BLOCKS)
@pytest.mark.parametrize("async_steps", [False, True])
def test_every_block_holds_what_is_read(windows: tuple[int | None, ...], async_steps: bool) -> None:
    seen = SimReport()
    ways = itertools.product((0.0, 0.5), (10, 60), (True, False))
    for seed, (draft_rate, num_host_blocks, uses_prefix_cache) in enumerate(ways):
        found = run(
            seed,
            num_steps=250,
            windows=windows,
            num_blocks=NUM_BLOCKS[windows],
            max_rows=12,
            max_live=40,
            async_steps=async_steps,
            draft_rate=draft_rate,
            num_host_blocks=num_host_blocks,
            uses_prefix_cache=uses_prefix_cache,
        )
        seen.num_preemptions += found.num_preemptions
        seen.num_swaps += found.num_swaps
        seen.num_swapped_in_tokens += found.num_swapped_in_tokens
    assert seen.num_preemptions >= seen.num_swaps > 3
    assert seen.num_swapped_in_tokens > 30


class WithoutPromptLogprobs(Simulation):
    """Asks for no prompt logprobs, for which a prompt is always computed as a whole."""

    def _new_sampling(self) -> SamplingParams:
        return SamplingParams(max_tokens=self._random.randrange(1, 40), ignore_eos=True)


def test_nothing_is_computed_twice_while_the_host_has_room() -> None:
    found = {}
    for num_host_blocks in (0, 2000):
        settings = SimSettings(
            num_steps=600, num_blocks=24, arrival_rate=0.6, num_host_blocks=num_host_blocks, seed=3
        )
        found[num_host_blocks] = WithoutPromptLogprobs(
            ContinuousScheduler, Fcfs(None), settings, TIGHT
        ).run()
    assert found[0].num_swaps == 0 and found[0].num_recomputed_tokens > 300
    # What fills no block is not worth a copy.
    num_small = found[2000].num_preemptions - found[2000].num_swaps
    assert found[2000].num_swaps > 20 and num_small < 5
    assert found[2000].num_recomputed_tokens < num_small * settings.block_tokens + 1


def test_host_blocks_are_taken_whole_or_not_at_all() -> None:
    host = HostBlockAccounting(5)
    assert host.put("a", [[7, 8], [0, 9]], 6) == ((7, 0), (8, 1), (9, 2))
    assert host.put("b", [[1, 2, 3]], 9) is None
    assert host.put("b", [[1, 2]], 6) == ((1, 3), (2, 4))
    assert (host.num_requests, host.usage) == (2, 1.0)
    host.check_invariants()
    host.drop("a")
    host.drop("a")
    host.check_invariants()
    assert host.usage == pytest.approx(0.4)
    assert host.put("c", [[5]], 3) == ((5, 0),)


# ---- with a model

NUM_REQUESTS = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Gemma: some layers see a window, the others everything."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("m") / "gemma", "Gemma3ForCausalLM")


def asks() -> tuple[list[list[int]], list[SamplingParams]]:
    draw = random.Random(1)
    prompts = [
        [draw.randrange(5, 250) for _ in range(draw.randrange(5, 30))] for _ in range(NUM_REQUESTS)
    ]
    return prompts, [
        SamplingParams(
            temperature=float(i % 2), seed=i, max_tokens=draw.randrange(50, 80), ignore_eos=True
        )
        for i in range(NUM_REQUESTS)
    ]


def answers(folder: Path, num_blocks: int, **flags: Any) -> tuple[list[tuple[int, ...]], StepStats]:
    """Return every request's tokens, and the engine's numbers at the end."""
    with LLM(
        str(folder),
        max_model_len=128,
        num_gpu_blocks_override=num_blocks,
        skip_tokenizer_init=True,
        use_tqdm_on_load=False,
        plugin_options={"scheduler": {"growth_blocks": 0}},
        **flags,
    ) as llm:
        core = core_of(llm)
        totals = []
        step = core.step

        def counted() -> Any:
            output = step()
            if output.stats is not None:
                totals.append(output.stats)
            return output

        core.step = counted  # type: ignore[method-assign]
        results = llm.generate(*asks(), use_tqdm=False)
        core.check_idle()
    sums = {
        name: sum(getattr(stats, name) for stats in totals)
        for name in ("preemptions", "swaps", "swapped_in_tokens")
    }
    most = max((stats.num_swapped for stats in totals), default=0)
    usage = max((stats.host_kv_usage for stats in totals), default=0.0)
    told = StepStats(
        num_running=0, num_waiting=0, kv_usage=0, num_swapped=most, host_kv_usage=usage, **sums
    )
    return [result.outputs[0].token_ids for result in results], told


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_swap_space(folder: Path, async_scheduling: bool) -> None:
    """--swap-space keeps the caches of preempted requests, and no token changes by it."""
    wanted, free = answers(folder, 400)
    assert free.preemptions == 0
    flags = {"async_scheduling": async_scheduling}
    tokens, told = answers(folder, 30, swap_space=0.01, **flags)
    assert tokens == wanted
    assert told.preemptions >= told.swaps > 3
    assert told.swapped_in_tokens > 50
    assert told.num_swapped >= 1 and 0 < told.host_kv_usage < 1
    tokens, told = answers(folder, 30, swap_space=0, **flags)
    assert tokens == wanted
    assert told.preemptions > 3 and told.swaps == told.num_swapped == 0


def test_what_comes_back_is_what_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves the test above: without the copies answers do change."""
    monkeypatch.setattr(host_blocks.HostBlockStorage, "swap_in", lambda self, pairs: None)
    wanted, _ = answers(folder, 400)
    assert answers(folder, 30, swap_space=0.01)[0] != wanted


def test_unasked_a_cpu_has_none(folder: Path) -> None:
    """The cache itself lies in host memory; --preemption-mode swap asks for some."""
    quick = {"skip_tokenizer_init": True, "kv_cache_memory_bytes": "1m", "use_tqdm_on_load": False}
    sizes = {}
    for mode in (None, "recompute", "swap"):
        with LLM(str(folder), preemption_mode=mode, **quick) as llm:
            sizes[mode] = llm.spec.cache.host_bytes
    assert sizes == {None: 0, "recompute": 0, "swap": 4 << 30}


def test_a_worker_that_does_not_swap_is_not_asked_to(folder: Path) -> None:
    with pytest.raises(ConfigError, match="does not support swapping") as caught:
        LLM(
            str(folder),
            worker_cls="dovetail_testing.tiny.worker:TinyWorker",
            swap_space=1,
            skip_tokenizer_init=True,
        )
    assert caught.value.where == "--swap-space"
