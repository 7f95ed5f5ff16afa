"""dovetail beside its peers on CPU: same prompts, same tokens, interleaved, ratios at the end.

    python -m benchmarks.peers.run --models DIR --venvs DIR --peers all \\
        --engine "dovetail-int8: --quantization int8"

For every number of threads and every round, the engines of one weight width are loaded together and
take turns at each measure (A B C, the next round begins with B), each in its own process, with the
machine's limits probed in the same minutes. Measures: `decode` (one sequence, 128 + 64), `prefill`
(1024 + 1), `batchN` (N sequences of 128 + 64). Greedy, end tokens ignored, prefix caches off. With
--avx2 everything computes as on a machine with AVX2 alone. Rows are appended to --out as JSON
lines; report.py makes the tables again. How to install the peers: README.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.catalog import Engine, Place, chosen, dovetail_engine
from benchmarks.peers.engine_process import EngineFailed, EngineProcess
from benchmarks.peers.isa import Hold, hold_to_avx2, processor
from benchmarks.peers.machine import Window, wait_quiet
from benchmarks.peers.probe import probe
from benchmarks.peers.prompts import PromptMaker
from benchmarks.peers.report import Row, Shape, figures_of, headline, render, shape_of

MEASURES = ("decode", "prefill", "batch8", "batch16", "batch32")
NUM_PROMPT, NUM_NEW, NUM_PREFILL = 128, 64, 1024
RUN_LIMIT_S = 600.0
FREE_BYTES = 3 << 30
"""An engine is not started when less memory than this is free."""


def protocol(measure: str) -> tuple[int, int, int]:
    """Return (sequences, prompt tokens, new tokens) of a measure."""
    if measure == "prefill":
        return 1, NUM_PREFILL, 1
    return int(measure.removeprefix("batch") if measure != "decode" else 1), NUM_PROMPT, NUM_NEW


class Bench:
    """The run: engines, prompts, rounds. Rows go to the file as they come."""

    def __init__(self, arguments: argparse.Namespace, engines: list[Engine]) -> None:
        """Read the model's shape and tokenizer."""
        self.asked = arguments
        self.engines = engines
        self.checkpoint: Path = arguments.models / arguments.model
        config = json.loads((self.checkpoint / "config.json").read_text())
        self.shape: Shape = shape_of(config)
        self.maker = PromptMaker(self.checkpoint)
        self.rows: list[Row] = []

    def note(self, place: Place, missing: list[tuple[Engine, str]]) -> None:
        """Keep what the run is taken on, and who of its widths is not there."""
        machine = {"name": place.machine.name, "sets": place.machine.sets}
        machine |= {"cores": os.cpu_count(), "held_to": str(place.hold)}
        machine["is_held"] = place.hold.is_needed
        self._write({"machine": machine})
        widths = {engine.width for engine in self.engines}
        for engine, why in missing:
            if engine.width in widths:
                self._write({"engine": engine.name, "width": engine.width, "missing": why})

    def run(self) -> None:
        """Run everything that was asked for."""
        widths = sorted({engine.width for engine in self.engines}, reverse=True)
        for number in range(self.asked.rounds):
            for threads in self.asked.threads:
                for width in widths:
                    group = [engine for engine in self.engines if engine.width == width]
                    start = number % len(group)
                    self._group(group[start:] + group[:start], number, threads)

    def _group(self, group: list[Engine], number: int, threads: int) -> None:
        """Load the engines of a width, let them take turns, and end them."""
        context = {"round": number, "threads": threads}
        live: list[EngineProcess] = []
        try:
            for engine in group:
                live += self._started(engine, context)
            for measure in self.asked.measures:
                limits = self._limits(context)
                for process in live:
                    if process.is_alive:
                        self._turn(process, measure, context | {"limits": limits})
        finally:
            for process in live:
                process.stop()

    def _limits(self, context: Row) -> Row:
        """Return what the machine gives now, with nothing of ours running beside the probe."""
        wait_quiet(self.asked.quiet_share, self.asked.quiet_wait_s)
        with Window(pids=[os.getpid()]) as window:
            limits = probe(context["threads"])
        limits["foreign_share"] = window.foreign_share
        self._write(context | {"probe": limits})
        return limits

    def _started(self, engine: Engine, context: Row) -> Iterator[EngineProcess]:
        """Yield the loaded engine, or nothing when it does not come up."""
        row = context | {"engine": engine.name, "width": engine.width}
        if psutil.virtual_memory().available < FREE_BYTES:
            self._write(row | {"error": "not started: too little memory is free"})
            return
        try:
            process = EngineProcess(
                engine,
                python=engine.python(self.asked.venvs, sys.executable),
                model=engine.path(self.asked.models, self.asked.model),
                checkpoint=self.checkpoint,
                num_threads=context["threads"],
                log=self.asked.logs / f"{engine.name}.log",
            )
        except EngineFailed as error:
            self._write(row | {"error": str(error)})
            return
        self._write(row | {"load_s": process.load_s, "facts": process.facts})
        yield process

    def _turn(self, process: EngineProcess, measure: str, context: Row) -> None:
        """Measure; a disturbed run is made again and the least disturbed one kept."""
        engine = process.engine
        sequences, num_prompt, num_new = protocol(measure)
        row = context | {
            "engine": engine.name,
            "width": engine.width,
            "is_dovetail": engine.is_dovetail,
            "measure": measure,
        }
        made = self.maker.make(sequences, num_prompt, seed=context["round"])
        ids = [prompt.ids for prompt in made]
        shape = {"sequences": sequences, "tokens_each": num_prompt + num_new}
        tried: list[Row] = []
        try:
            process.ask({"do": "prepare", **shape}, RUN_LIMIT_S)
            while len(tried) < self.asked.tries:
                answer = self._timed(process, {"do": "run", "prompts": ids, "num_new": num_new})
                figures = figures_of(self.shape, answer, num_prompt, num_new, engine.bits)
                tried.append(row | answer["machine"] | figures)
                if tried[-1]["foreign_share"] <= self.asked.quiet_share:
                    break
        except EngineFailed as error:
            self._write(row | {"error": str(error)})
            return
        self._write(min(tried, key=lambda one: one["foreign_share"]) | {"tries": len(tried)})

    def _timed(self, process: EngineProcess, command: Row) -> Row:
        """Return the worker's answer, with what the machine did meanwhile as "machine"."""
        wait_quiet(self.asked.quiet_share, self.asked.quiet_wait_s)
        with Window(pids=[process.pid]) as window:
            answer = process.ask(command, RUN_LIMIT_S)
        shares = {"own_share": window.own_share, "foreign_share": window.foreign_share}
        return answer | {"machine": shares | {"peak_bytes": answer["peak_bytes"]}}

    def _write(self, row: Row) -> None:
        """Keep a row, append it to the file and tell it in one line. Mutates: rows."""
        row = {"at": datetime.datetime.now().isoformat(timespec="seconds")} | row
        self.rows.append(row)
        with self.asked.out.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(_line(row), flush=True)


def _line(row: Row) -> str:
    """Return a row as one line for the eye."""
    if "machine" in row:
        return f"{row['at'][11:]} on {row['machine']}"
    if "missing" in row:
        return f"{row['at'][11:]} {row['engine']} missing: {row['missing']}"
    place = f"{row['at'][11:]} round {row['round']} x{row['threads']}"
    if "probe" in row:
        return f"{place} probe {row['probe']}"
    place += f" {row['engine']:<26}"
    if "error" in row:
        return f"{place} {row.get('measure', 'start')}: {row['error']}"
    if "measure" not in row:
        return f"{place} loaded in {row['load_s']:.1f} s: {row['facts']}"
    rate = row[headline(row["measure"])]
    told = f"{place} {row['measure']:<8}{rate:8.1f} tok/s  others {row['foreign_share']:.2f}"
    if "step_p10_ms" in row:
        told += f"  step p10 {row['step_p10_ms']:.1f} p50 {row['step_p50_ms']:.1f} ms"
    return told


def arguments_of(given: list[str] | None = None) -> Any:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="folder of make_models.py")
    parser.add_argument("--model", default="S")
    parser.add_argument("--venvs", type=Path, required=True, help="folder of the peers' venvs")
    parser.add_argument("--peers", nargs="*", default=["all"], help="names in catalog.py, or all")
    parser.add_argument("--engine", action="append", default=[], help='"NAME@WIDTH: FLAGS"')
    parser.add_argument("--widths", nargs="*", type=int, help="only engines of these widths")
    parser.add_argument("--measures", nargs="*", default=list(MEASURES))
    parser.add_argument("--threads", nargs="*", type=int, default=[psutil.cpu_count()])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--avx2", action="store_true", help="hold every engine to AVX2")
    parser.add_argument(
        "--quiet-share", type=float, default=0.05, help="wait until others use less"
    )
    parser.add_argument("--quiet-wait-s", type=float, default=20.0, help="but no longer than this")
    parser.add_argument("--tries", type=int, default=2, help="of a run that others disturbed")
    parser.add_argument("--logs", type=Path, default=Path("peer-logs"))
    parser.add_argument("--out", type=Path, default=Path("peers.jsonl"))
    return parser.parse_args(given)


def place_of(asked: argparse.Namespace) -> Place:
    """Return where the run looks for engines, and the machine it runs on."""
    machine = processor()
    hold = hold_to_avx2(machine, asked.logs) if asked.avx2 else Hold(environment={})
    return Place(
        models=asked.models,
        model=asked.model,
        venvs=asked.venvs,
        own=sys.executable,
        machine=machine,
        hold=hold,
    )


def main() -> None:
    """Run and print the tables."""
    asked = arguments_of()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing started is left
    asked.logs.mkdir(parents=True, exist_ok=True)
    place = place_of(asked)
    os.environ.update(place.hold.environment)
    peers, missing = chosen(asked.peers, place)
    engines = peers + [dovetail_engine(text) for text in asked.engine]
    if asked.widths:
        engines = [engine for engine in engines if engine.width in asked.widths]
    bench = Bench(asked, engines)
    bench.note(place, missing)
    start_s = time.perf_counter()
    try:
        bench.run()
    finally:
        print(f"\n{render(bench.rows)}\n\n{time.perf_counter() - start_s:.0f} s in all")


if __name__ == "__main__":
    main()
