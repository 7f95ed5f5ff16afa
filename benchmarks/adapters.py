"""What adapters cost a decode step, and what it costs to load one.

A model of Qwen2-0.5B's shape (0.47 billion parameters, random) decodes the same rows without room
for adapters, with room and none in use, all rows with one adapter, and each row with its own; the
engines take turns. Where an engine's memory happens to lie moves its times by some percent, so
there are two without room, made before and after the other, and ratios are to their mean. Adapters
change every linear layer. The floor is bytes: what adapters in use add to what a step reads. What
loading takes is measured last, by an engine of its own (adapter_loading).

    PYTHONPATH=core:plugins:kernels python -m benchmarks.adapters [--rows 8] [--rank 16] [--cpu]

`--cpu` is for a busy machine: processor time, of one thread unless more are asked for; one thread
stays on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.adapter_loading import (
    HIDDEN,
    INNER,
    LAYERS,
    SIZES,
    Clock,
    load,
    measured,
    report,
    write_adapter,
)
from dovetail import LLM, SamplingParams
from dovetail.engine.client.offline.sync_engine import SyncEngine

VOCAB = 151936
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
SKIPPED_STEPS = 4
PLAIN, AGAIN = "no room for adapters", "no room, made later"


def engine_of(model: Path, threads: int, **settings: object) -> SyncEngine:
    """Return an engine of the model with random weights."""
    llm = LLM(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_num_seqs=32,
        num_gpu_blocks_override=512,
        num_threads=threads,
        use_tqdm_on_load=False,
        **settings,
    )
    engine = llm._engine
    assert isinstance(engine, SyncEngine)
    return engine


def step_times(
    engine: SyncEngine, adapters: Sequence[str], num_steps: int, clock: Clock
) -> list[float]:
    """Return the seconds of decode steps of rows that use these adapters."""
    params = SamplingParams(
        max_tokens=num_steps + SKIPPED_STEPS, temperature=0.0, ignore_eos=True, detokenize=False
    )
    for row, adapter in enumerate(adapters):
        prompt = [(row * 97 + i * 31) % 1000 for i in range(16)]
        engine.submit(engine.prepare(prompt, params, adapter=adapter))
    times = []
    while engine.has_work:
        start_s = clock()
        engine.step()
        times.append(clock() - start_s)
    return times[SKIPPED_STEPS:-1]


def main() -> None:
    """Print the times and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8, help="at least two")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--threads", type=int, help="2, or 1 with --cpu")
    parser.add_argument("--cpu", action="store_true", help="processor time, on a busy machine")
    parser.add_argument("--layouts", type=int, default=5, help="new ones of each sort of adapter")
    parser.add_argument("--only-loading", action="store_true")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    chosen.threads = chosen.threads or (1 if chosen.cpu else 2)
    with tempfile.TemporaryDirectory() as scratch:
        run(chosen, Path(scratch))


def run(chosen: argparse.Namespace, scratch: Path) -> None:
    """Decode in turns, then load adapters into another engine."""
    (scratch / "model").mkdir()
    (scratch / "model" / "config.json").write_text(json.dumps(CONFIG))
    clock = time.process_time if chosen.cpu else time.perf_counter
    if chosen.cpu and chosen.threads == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if not chosen.only_loading:
        decode(chosen, scratch, clock)
    (scratch / "loaded").mkdir()
    room = engine_with_room(chosen, scratch)
    report(measured(room, scratch / "loaded", chosen.rank, chosen.layouts, clock))


def engine_with_room(chosen: argparse.Namespace, scratch: Path) -> SyncEngine:
    """Return an engine with room for an adapter for each row."""
    return engine_of(
        scratch / "model",
        chosen.threads,
        enable_lora=True,
        max_loras=chosen.rows,
        max_lora_rank=chosen.rank,
    )


def decode(chosen: argparse.Namespace, scratch: Path, clock: Clock) -> None:
    """Build the engines, decode in turns and print the times."""
    rows, names = chosen.rows, [f"a{i}" for i in range(chosen.rows)]
    plain = engine_of(scratch / "model", chosen.threads)
    room = engine_with_room(chosen, scratch)
    again = engine_of(scratch / "model", chosen.threads)
    for seed, name in enumerate(names):
        load(room, name, write_adapter(scratch / name, chosen.rank, seed), clock)
    ways: dict[str, Callable[[], list[float]]] = {
        PLAIN: lambda: step_times(plain, [""] * rows, chosen.steps, clock),
        AGAIN: lambda: step_times(again, [""] * rows, chosen.steps, clock),
        "room, none in use": lambda: step_times(room, [""] * rows, chosen.steps, clock),
        "one adapter": lambda: step_times(room, names[:1] * rows, chosen.steps, clock),
        f"{rows} adapters": lambda: step_times(room, names, chosen.steps, clock),
    }
    for way in ways.values():
        way()
    medians: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(chosen.rounds):
        for name, way in ways.items():
            medians[name].append(statistics.median(way()))
    pairs = zip(medians[PLAIN], medians[AGAIN], strict=True)
    bases = [(one + other) / 2 for one, other in pairs]
    print(f"{rows} rows, rank {chosen.rank}, {chosen.threads} threads; milliseconds a step")
    for name, found in medians.items():
        ratios = [one / base for one, base in zip(found, bases, strict=True)]
        low, high = min(ratios), max(ratios)
        print(
            f"{name:<22}{statistics.median(found) * 1e3:8.2f}   "
            f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
        )
    report_floor(chosen.rank, rows)


def report_floor(rank: int, rows: int) -> None:
    """Print what adapters add to the bytes that a step reads, in bfloat16."""
    own = sum(inputs * outputs for inputs, outputs in SIZES.values()) * LAYERS
    own += VOCAB * HIDDEN
    of_one = sum(inputs + outputs for inputs, outputs in SIZES.values()) * LAYERS * rank
    print(
        f"bytes read: one adapter {1 + of_one / own:.3f}, {rows} adapters "
        f"{1 + rows * of_one / own:.3f} of the model's alone"
    )


if __name__ == "__main__":
    main()
