"""Hostile constraints while streams run: what they cost the streams, and how long until they are
refused.

Eight streams of a model answer while every constraint of tests/support/hostile_constraints.py is
asked for, one after the other. Bars: a refusal within the limit and 0.5 s; the 99th percentile of
the time between tokens at most 1.5 times that without hostile constraints; nothing left running.

    PYTHONPATH=core:plugins:kernels python benchmarks/constraint_bounds.py [--backend guidance]
        [--model FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.errors import RequestError, RequestFault
from dovetail.interfaces.data.constraint import Literal
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.structured_output.compiler import ConstraintCompiler

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from support.hostile_constraints import HOSTILE  # noqa: E402

NUM_STREAMS = 8


async def stream(engine: AsyncEngine, name: str, stop: asyncio.Event, gaps_s: list[float]) -> None:
    """Answer again and again; note the seconds between the tokens of an answer."""
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=256, ignore_eos=True)
    number = 0
    while not stop.is_set():
        before_s = None
        async for output in engine.generate("The sky is", params, f"{name}-{number}"):
            now_s = time.perf_counter()
            if before_s is not None and output.deltas:
                gaps_s.append(now_s - before_s)
            before_s = now_s
            if stop.is_set():
                break
        number += 1


async def with_streams(engine: AsyncEngine, work: Any) -> list[float]:
    """Return the gaps of the streams while some work runs."""
    stop = asyncio.Event()
    gaps_s: list[float] = []
    tasks = [
        asyncio.create_task(stream(engine, f"stream {n}", stop, gaps_s)) for n in range(NUM_STREAMS)
    ]
    await asyncio.sleep(2.0)
    gaps_s.clear()
    await work
    stop.set()
    await asyncio.gather(*tasks)
    return list(gaps_s)


async def ask_all(
    compiler: ConstraintCompiler, engine: AsyncEngine, backend: str | None, limit_s: float
) -> None:
    """Say for every hostile constraint how long it took and what came of it; run those taken."""
    for word, constraint in HOSTILE.items():
        await compiler.compile(Literal("x" + word), where="constraint", backend=backend)
        begun_s = time.perf_counter()
        try:
            compiled = await compiler.compile(constraint, where="constraint", backend=backend)
            came = f"compiled by {compiled.backend}"
        except RequestError as error:
            compiled, came = None, f"{error.status} {error.code}"
        took_s = time.perf_counter() - begun_s
        late = "" if took_s < limit_s + 0.5 else "   LATE"
        print(f"{word:<28}{took_s:>7.2f} s  {came}{late}", flush=True)
        if compiled is not None:
            params = SamplingParams(constraint=compiled, max_tokens=24, temperature=1.0, seed=2)
            try:
                async for _ in engine.generate("x", params, f"hostile {word}"):
                    pass
            except RequestFault:
                print(f"{word:<28}           its answer ended with an error")


async def measure(backend: str | None, limit_s: float, model: str | None) -> None:
    """Print the constraints, then the ratio of the streams' gaps."""
    said = {"compile_limit_s": limit_s} | ({"backend": backend} if backend else {})
    fields = {"model": model, "structured_outputs_config": said, "disable_log_stats": True}
    spec = resolve(Config.from_fields(fields))
    engine = await AsyncEngine.start(spec)
    compiler = engine.constraint_compiler
    assert compiler is not None
    assert spec.run.structured_output is not None
    every = [one.name for one in spec.run.structured_output.backends]
    for name in [backend] if backend else every:  # making one ready is no constraint's doing
        compiled = await compiler.compile(Literal("ready"), where="constraint", backend=name)
        async for _ in engine.generate("x", SamplingParams(constraint=compiled), f"ready {name}"):
            pass
    plain = await with_streams(engine, asyncio.sleep(15.0))
    hostile = await with_streams(engine, ask_all(compiler, engine, backend, limit_s))
    again = await with_streams(engine, asyncio.sleep(15.0))
    worker = compiler._process
    before = psutil.Process(worker.pid).cpu_times() if worker else None
    await asyncio.sleep(3.0)
    if worker and before:
        after = psutil.Process(worker.pid).cpu_times()
        print(f"CPU of the compiler in the 3 s after: {after.user - before.user:.2f} s")
    base = statistics.quantiles(plain + again, n=100)[98]
    high = statistics.quantiles(hostile, n=100)[98]
    print(
        f"{backend or 'auto'}: p99 between tokens {base * 1e3:.1f} ms without, {high * 1e3:.1f} ms "
        f"with hostile constraints: {high / base:.2f}x (medians "
        f"{statistics.median(plain + again) * 1e3:.1f}, {statistics.median(hostile) * 1e3:.1f} ms)"
    )
    await compiler.close()
    await engine.shutdown()
    print(f"children left: {len(psutil.Process().children(recursive=True))}")


def main() -> None:
    """Measure one backend, or what auto takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend")
    parser.add_argument("--limit-s", type=float, default=2.0)
    parser.add_argument("--model", help="a checkpoint; the demo model without it")
    chosen = parser.parse_args()
    asyncio.run(measure(chosen.backend, chosen.limit_s, chosen.model))


if __name__ == "__main__":
    main()
