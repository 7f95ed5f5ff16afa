"""Several ranks on this machine against one: what handing a step over costs, and what dividing the
model brings.

The two sides of every comparison run in turn, so that a busy machine slows both. Bars: a plan of 32
rows handed to two ranks and its result back, 80 us over what the step takes; two ranks with a core
each, 0.9 of the speed of one rank with two threads. An idle engine's ranks use no processor.

    PYTHONPATH=core:plugins:kernels python benchmarks/ranks.py [handing | dividing]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail import LLM, SamplingParams
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.spec import RankSpec, RunSpec, Selection
from dovetail.interfaces.step import (
    KVLayer,
    KVLayout,
    RowResult,
    RowStep,
    StepPlan,
    StepResult,
)
from dovetail.interfaces.worker import Worker
from dovetail.testing.tiny import tiny_run
from dovetail_plugins.executors.mp import MpExecutor
from dovetail_plugins.executors.uni import UniExecutor

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


class PlainWorker(Worker):
    """Has no model: a step keeps its core busy for a while and gives every row a token."""

    info = Info(summary="benchmark worker: no model", devices=("cpu",))

    def __init__(self, options: Any, run: RunSpec) -> None:
        self.step_s = float(run.load_options.get("step_us", 0)) * 1e-6

    def load(self) -> None:
        """Load nothing."""

    def kv_layers(self) -> Sequence[KVLayer]:
        """Return nothing."""
        return ()

    def free_bytes(self) -> int:
        """Return nothing."""
        return 0

    def allocate(self, layout: KVLayout) -> None:
        """Allocate nothing."""

    def step(self, plan: StepPlan) -> StepResult:
        """Return a token a row; `forward_s` is all the time that this took."""
        started_s = time.perf_counter()
        rows = tuple(RowResult(row=row.row, token_ids=(row.start,)) for row in plan.rows)
        while time.perf_counter() - started_s < self.step_s:
            pass
        took_s = time.perf_counter() - started_s
        return StepResult(step_id=plan.step_id, rows=rows, forward_s=took_s)


WORKER = Selection(kind="worker", name="plain", target=f"{Path(__file__).resolve()}:PlainWorker")


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
    steps, as a busy engine makes them, and for the first one after a pause."""
    options = {"step_us": step_us}
    run = msgspec.structs.replace(tiny_run(), load_options=options)
    two = msgspec.structs.replace(run, rank=RankSpec(world_size=2, local_size=2))
    executors = {"uni": UniExecutor(None, run, WORKER), "mp": MpExecutor(None, two, WORKER)}
    running: dict[str, list[float]] = {name: [] for name in executors}
    first: dict[str, list[float]] = {name: [] for name in executors}
    try:
        for _ in range(turns):
            for name, executor in executors.items():
                time.sleep(PAUSE_S)
                taken = [over_s(executor, planned(number)) for number in range(RUN_STEPS)]
                first[name].append(taken[0])
                running[name] += taken[1:]
        idle = idle_share(executors["mp"])
    finally:
        for executor in executors.values():
            executor.shutdown()
    for name in executors:
        print(
            f"step of {step_us:5d} us, {name:3}: over it {quartiles_us(running[name])} us, after a "
            f"pause {quartiles_us(first[name])} us (quartiles)"
        )
    print(f"  idle ranks: {idle:.3%} of a processor each")
    over = statistics.median(running["mp"])
    print(f"  bar {BAR_S * 1e6:.0f} us: {'met' if over <= BAR_S else 'MISSED'}")


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
        Path(folder, "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
        flags: dict[str, Any] = {
            "model": folder,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "max_model_len": 1024,
            "max_num_seqs": 16,
            "use_tqdm_on_load": False,
            "disable_log_stats": True,
            "enable_prefix_caching": False,
        }
        with (
            LLM(**flags, num_threads=2) as one,
            LLM(**flags, tensor_parallel_size=2, num_threads=1) as two,
        ):
            for rows, prompt, new in ((1, 8, 48), (8, 8, 32), (1, 512, 1), (8, 128, 16)):
                compare(one, two, rounds, rows, prompt, new)


def compare(one: LLM, two: LLM, rounds: int, rows: int, prompt: int, new: int) -> None:
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
    word = "met" if middle >= BAR_RATIO else "MISSED"
    print(
        f"{rows} x {prompt} + {new} tokens: one rank {statistics.median(whole):7.1f} tokens/s, two "
        f"ranks {middle:.2f} of it ({low:.2f} to {high:.2f}); bar {BAR_RATIO}: {word}"
    )


def seconds_of(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    """Return how long an engine takes for all prompts."""
    started_s = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - started_s


def main() -> None:
    """Measure what was named, or everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["handing", "dividing"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.what in (None, "handing"):
        for step_us in (0, 1000, 5000):
            measure_handing(step_us)
    if args.what in (None, "dividing"):
        measure_dividing(args.rounds)


if __name__ == "__main__":
    main()
