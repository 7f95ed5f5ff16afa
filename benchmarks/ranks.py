"""Several ranks on this machine against one: what handing a step over costs, and what dividing the
model brings.

The two sides of every comparison run in turn, so that a busy machine slows both. Bars: a plan of 32
rows handed to two ranks and its result back, 80 us over what the step takes; two ranks with a core
each, 0.9 of the speed of one rank with two threads. Beside the first stands what bare sockets take
for it on the same cores in the same run. An idle engine's ranks use no processor. Stages
of a pipeline are compared without a bar: each reads its weights once for every plan, so small
batches cost what they cost.

    PYTHONPATH=core:plugins:kernels python -m benchmarks.ranks [handing | dividing | stages]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks import rank_workers
from benchmarks.ping_pong import PingPong
from dovetail import LLM, SamplingParams, registry
from dovetail.config.rules.machine.cores import cores_of_ranks
from dovetail.interfaces.data.spec import RankSpec, Selection
from dovetail.interfaces.data.step import KVLayout, NewRow, RowStep, StepPlan
from dovetail_plugins.executors.mp import MpExecutor
from dovetail_plugins.executors.uni import UniExecutor
from dovetail_testing.tiny.transformer import tiny_layout, tiny_run

NUM_ROWS = 32
PLAN_S = 200e-6
"""An engine is at its own work for about so long between two steps."""
RUN_STEPS = 25
PAUSE_S = 0.02
IDLE_S = 2.0
BAR_S, BAR_RATIO = 80e-6, 0.9
SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
    "bos_token_id": 0,
}


WORKERS = Path(rank_workers.__file__).resolve()
SPLIT = "7,5"
"""Layers of the two stages: the head, of the last one, weighs as much as two layers."""


def measure_sleeping(count: int = 60) -> None:
    """Print how long a plan takes two stages that sleep, by the number of plans under way."""
    rank = RankSpec(world_size=2, num_stages=2, stage_layers=(1, 1), local_size=2)
    communicator = registry.choose("communicator", "shared_memory")
    run = msgspec.structs.replace(tiny_run(), rank=rank, communicator=communicator)
    target = f"{WORKERS}:SleepyStage"
    executor = MpExecutor(None, run, Selection(kind="worker", name="sleepy", target=target))
    try:
        layout = tiny_layout(list(executor.kv_layers()))
        executor.allocate(layout)
        for depth in (1, 2):
            plans = [sleepy_plan(layout, depth, number) for number in range(count)]
            pending, started_s = deque[Any](), time.perf_counter()
            for plan in plans:
                pending.append(executor.submit(plan))
                if len(pending) >= depth:
                    pending.popleft().result()
            while pending:
                pending.popleft().result()
            each_ms = (time.perf_counter() - started_s) / count * 1e3
            wait = 1 - rank_workers.SLEEP_S * 1e3 / each_ms
            print(f"{depth} plans under way: {each_ms:.1f} ms a plan, a stage waits {wait:.0%}")
    finally:
        executor.shutdown()


def sleepy_plan(layout: KVLayout, depth: int, number: int) -> StepPlan:
    """Return the step of one of `depth` rows whose turn it is."""
    blocks, row = ((),) * len(layout.groups), 2 * depth + number % depth
    new = NewRow(
        row=row,
        request_id=str(row),
        token_ids=(5,),
        num_prompt_tokens=1,
        num_computed_tokens=0,
        blocks=blocks,
        sampling=SamplingParams(),
        seed=0,
    )
    step = RowStep(row=row, start=number // depth, num_tokens=1, samples=True, new_blocks=blocks)
    return StepPlan(
        step_id=1000 * depth + number, rows=(step,), new_rows=(new,) if number < depth else ()
    )


WORKER = Selection(kind="worker", name="plain", target=f"{WORKERS}:PlainWorker")


def plan_of(step_id: int) -> StepPlan:
    """Return a decode step of all rows, some of which get a new block."""
    rows = tuple(
        RowStep(
            row=row,
            start=500 + step_id,
            num_tokens=1,
            samples=True,
            new_blocks=((row,),) if (row + step_id) % 16 == 0 else ((),),
        )
        for row in range(NUM_ROWS)
    )
    return StepPlan(step_id=step_id, rows=rows)


def over_s(executor: Any, plan: StepPlan) -> float:
    """Return how much longer a step took than the worker was at it."""
    started_s = time.perf_counter()
    result = executor.submit(plan).result()
    return time.perf_counter() - started_s - float(result.forward_s)


def measure_handing(step_us: int, turns: int = 40) -> None:
    """Print what handing a step over costs with two ranks, and within the process: in a run of
    steps, as a busy engine makes them, and for the first one after a pause. The ranks are bound to
    a core each, as those of an engine are."""
    cores = cores_of_ranks(None, 2)
    if not cores:
        raise SystemExit("two ranks are bound to a core each: this needs two cores, and Linux.")
    run = msgspec.structs.replace(tiny_run(), load_options={"step_us": step_us})
    rank = RankSpec(world_size=2, local_size=2)
    two = msgspec.structs.replace(run, rank=rank, rank_processors=cores)
    running: dict[str, list[float]] = {"uni": [], "mp": []}
    first: dict[str, list[float]] = {name: [] for name in running}
    floor: list[float] = []
    with (
        closing(UniExecutor(None, run, WORKER)) as uni,
        closing(MpExecutor(None, two, WORKER)) as mp,
        PingPong(step_us, (cores[0][0], cores[1][0])) as sockets,
    ):
        for _ in range(turns):
            for name, executor in (("uni", uni), ("mp", mp)):
                time.sleep(PAUSE_S)
                taken = [over_s(executor, planned(number)) for number in range(RUN_STEPS)]
                first[name].append(taken[0])
                running[name] += taken[1:]
            floor += [after_planning(sockets.over_s) for _ in range(RUN_STEPS)][1:]
        idle = idle_share(mp)
    for name, taken in running.items():
        print(
            f"step of {step_us:5d} us, {name:3}: over it {quartiles_us(taken)} us, after a "
            f"pause {quartiles_us(first[name])} us (quartiles)"
        )
    print(f"  bare sockets: {quartiles_us(floor)} us; idle ranks: {idle:.3%} of a processor each")
    over = statistics.median(running["mp"])
    print(f"  bar {BAR_S * 1e6:.0f} us: {'met' if over <= BAR_S else 'MISSED'}", flush=True)


@contextmanager
def closing(executor: Any) -> Iterator[Any]:
    """Shut an executor down at the end."""
    try:
        yield executor
    finally:
        executor.shutdown()


def after_planning(measure: Callable[[], float]) -> float:
    """Return what is measured after as long as an engine plans at a step."""
    planned(0)
    return measure()


def planned(step_id: int) -> StepPlan:
    """Return a step's plan after as long as an engine plans at it. Nothing else is measured."""
    until_s = time.perf_counter() + PLAN_S
    plan = plan_of(step_id)
    while time.perf_counter() < until_s:
        pass
    return plan


def idle_share(executor: Any) -> float:
    """Return the share of a processor that each rank takes after its last step. Linux only."""
    files = [Path(f"/proc/{pid}/schedstat") for pid in executor._links.pids]
    before = sum(int(file.read_text().split()[0]) for file in files)
    time.sleep(IDLE_S)
    taken_ns = sum(int(file.read_text().split()[0]) for file in files) - before
    return taken_ns * 1e-9 / IDLE_S / len(files)


def quartiles_us(taken_s: list[float]) -> str:
    """Return the quartiles of some times in words."""
    return ", ".join(f"{q * 1e6:.0f}" for q in statistics.quantiles(taken_s, n=4))


def measure_dividing(rounds: int) -> None:
    """Print the speed of two ranks with a thread each over that of one with two threads."""
    with tempfile.TemporaryDirectory() as folder:
        flags = flags_of(folder)
        with (
            LLM(**flags, num_threads=2) as one,
            LLM(**flags, tensor_parallel_size=2, num_threads=1) as two,
        ):
            for rows, prompt, new in ((1, 8, 48), (8, 8, 32), (1, 512, 1), (8, 128, 16)):
                compare(one, two, rounds, rows, prompt, new)


def flags_of(folder: str) -> dict[str, Any]:
    """Return the flags of an engine with a model of random weights. Mutates: the folder"""
    Path(folder, "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    return {
        "model": folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
        "enable_prefix_caching": False,
    }


def measure_stages(rounds: int) -> None:
    """Print the speed of two stages with a thread each over that of one rank with two threads, and
    how long each stage waits."""
    with tempfile.TemporaryDirectory() as folder:
        flags = flags_of(folder)
        with LLM(**flags, num_threads=2) as one:
            before = set(psutil.Process().children())
            stages = {"pipeline_parallel_size": 2, "pipeline_layer_split": SPLIT}
            with LLM(**flags, **stages, num_threads=1) as two:
                ranks = sorted(set(psutil.Process().children()) - before, key=lambda c: c.pid)
                for rows in (1, 2, 4, 8):
                    compare(one, two, rounds, rows, 8, 48, bar=None)
                    print(f"  {waiting(two, ranks, rows)}")
                compare(one, two, rounds, 8, 256, 1, bar=None)
                compare(one, two, rounds, 1, 768, 1, bar=None)


def waiting(llm: LLM, ranks: Sequence[psutil.Process], rows: int) -> str:
    """Return in words which share of the time each stage does not compute: its processor time is
    counted, and a stage that waits sleeps."""
    params = SamplingParams(temperature=0, max_tokens=96, ignore_eos=True, detokenize=False)
    prompts = [[7 + row] * 8 for row in range(rows)]
    begun = [sum(rank.cpu_times()[:2]) for rank in ranks]
    taken_s = seconds_of(llm, prompts, params)
    busy = [sum(r.cpu_times()[:2]) - was for r, was in zip(ranks, begun, strict=True)]
    shares = ", ".join(f"{max(0.0, 1 - one / taken_s):.0%}" for one in busy)
    return f"{rows} requests: the stages wait {shares} of the time"


def compare(
    one: LLM,
    two: LLM,
    rounds: int,
    rows: int,
    prompt: int,
    new: int,
    *,
    bar: float | None = BAR_RATIO,
) -> None:
    """Print one line: the ratios of all rounds."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    prompts = [[7 + (11 * row + place) % 900 for place in range(prompt)] for row in range(rows)]
    ratios, whole = [], []
    for number in range(rounds + 1):
        seconds = [seconds_of(llm, prompts, params) for llm in (one, two)]
        if number:  # the first round records and warms up
            ratios.append(seconds[0] / seconds[1])
            whole.append(rows * new / seconds[0])
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    word = "" if bar is None else f"; bar {bar}: {'met' if middle >= bar else 'MISSED'}"
    print(
        f"{rows} x {prompt} + {new} tokens: one rank {statistics.median(whole):7.1f} tokens/s, two "
        f"ranks {middle:.2f} of it ({low:.2f} to {high:.2f}){word}"
    )


def seconds_of(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    """Return how long an engine takes for all prompts."""
    started_s = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - started_s


def main() -> None:
    """Measure what was named, or everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["handing", "dividing", "stages"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.what in (None, "handing"):
        for step_us in (0, 1000, 5000):
            measure_handing(step_us)
    if args.what in (None, "dividing"):
        measure_dividing(args.rounds)
    if args.what in (None, "stages"):
        measure_sleeping()
        measure_stages(args.rounds)


if __name__ == "__main__":
    main()
