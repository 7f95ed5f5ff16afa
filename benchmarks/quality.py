"""How much of what a checkpoint's weights know each way of serving it keeps; beside speed, memory.

    python -m benchmarks.quality MODEL [--rows "NAME;NAME"] [--quick] [--llamacpp VENV]
        [--threads N] [--work FOLDER] [--json FILE.jsonl] [--row "NAME=CHECKPOINT FLAGS"]...
    python -m benchmarks.quality --table FILE.jsonl [--into PAGE.md]

MODEL is a GGUF file or a folder of safetensors. Four windows of 512 tokens from the pages of
Python's language reference go through transformers in float32 (a GGUF file dequantized by its own
reader) and, the same ids, through every row: one process each. Per row: perplexity and how much
more it is than the reference's, mean and 99th percentile of abs(logprob - reference's) of the
text's tokens, the Kullback-Leibler divergence from the reference's chances over the whole
vocabulary (nats per token), how often the likeliest token is the same, the mean again for tokens
that are decoded one by one; then tokens/s, bytes of weights, peak memory before scoring. Rows with
a bar pass or fail; the exit status is 1 when one fails or cannot be measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import real_models
from benchmarks.quality_figures import Bar, failures, read_lines, table

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail" / "quality"
LIMIT_S = 3600.0
NUM_WINDOWS, QUICK_WINDOWS = 4, 2
DECODE_FROM, DECODE_TOKENS, QUICK_DECODE_TOKENS = 256, 64, 16
SPEED_NEW, QUICK_SPEED_NEW = 48, 16
LLAMACPP = "llama.cpp"
FILE_BAR = {"ppl_more": 0.005, "mean": 0.06}
FLOAT_ACTIVATIONS = ("--plugin-options.quantization.activations", "float")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way of serving. `checkpoint`: the file itself, its weights in a type ("f32", "bf16",
    "fp16"), or what a method of `dovetail quantize` makes of bf16.

    `beside` names a row whose perplexity the bar adds to: what the weights alone cost. With
    `meets_peer` llama.cpp on the same file excuses a mean and sets the least top-1 agreement.
    """

    name: str
    checkpoint: str = "file"
    flags: tuple[str, ...] = ()
    engine: str = "dovetail"
    bar: Bar = field(default_factory=dict)
    beside: str = ""
    meets_peer: bool = False


def _kv(name: str, bar: Bar | None = None) -> Row:
    return Row(name=f"KV {name}", checkpoint="f32", flags=("--kv-cache-dtype", name), bar=bar or {})


QUANTIZED = ("gptq", "awq", "gguf-q8_0", "gguf-q6_k", "gguf-q5_k_m", "gguf-q4_k_m", "gguf-iq4_xs",
             "gguf-q4_0", "int8", "int4", "fp8")  # fmt: skip
DRAFTS = ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 4}))
ROWS = (
    Row(name="file", bar=FILE_BAR, meets_peer=True),
    Row(name="file, float activations", flags=FLOAT_ACTIVATIONS, bar=FILE_BAR),
    Row(name="file, ngram drafts", flags=DRAFTS, bar=FILE_BAR, meets_peer=True),
    Row(name=LLAMACPP, engine=LLAMACPP),
    Row(name="float32", checkpoint="f32", bar={"mean": 0.001}),
    Row(name="bfloat16", checkpoint="bf16", bar={"mean": 0.02}),
    Row(name="float16", checkpoint="fp16", bar={"mean": 0.02}),
    Row(name="int8", checkpoint="bf16", flags=("--quantization", "int8"), bar={"ppl_more": 0.005}),
    Row(
        name="int4, float activations",
        checkpoint="bf16",
        flags=("--quantization", "int4", *FLOAT_ACTIVATIONS),
    ),
    Row(
        name="int4",
        checkpoint="bf16",
        flags=("--quantization", "int4"),
        bar={"ppl_more": 0.005},
        beside="int4, float activations",
    ),
    Row(name="int4-plain", checkpoint="bf16", flags=("--quantization", "int4-plain")),
    Row(name="fp8", checkpoint="bf16", flags=("--quantization", "fp8")),
    *(Row(name=f"quantize {method}", checkpoint=method) for method in QUANTIZED),
    Row(name=f"{LLAMACPP}, gguf-q8_0", checkpoint="gguf-q8_0", engine=LLAMACPP),
    Row(name=f"{LLAMACPP}, gguf-q4_0", checkpoint="gguf-q4_0", engine=LLAMACPP),
    _kv("int8", {"ppl_more": 0.005}),
    _kv("k8v4", {"ppl_more": 0.005}),
    _kv("int4"),
    _kv("fp8_e4m3", {"ppl_more": 0.01}),
    _kv("fp8_e5m2"),
)
"""fp8 as a KV cache type is fp8_e4m3."""
CALIBRATED = ("gptq", "awq")
TYPES = {"f32": "float32", "bf16": "bfloat16", "fp16": "float16"}
COMPLETE = ".complete"
BEGIN, END = "<!-- quality: begin -->", "<!-- quality: end -->"
"""Marks of the place in a page where `--table FILE --into PAGE` puts the tables."""


class Unavailable(Exception):
    """A row that cannot be measured here, and why."""


class Bench:
    """One model's windows, reference and checkpoints in a folder, and the rows measured on them."""

    def __init__(self, model: Path, asked: argparse.Namespace) -> None:
        self.model = model.resolve()
        self.asked = asked
        self.num_windows = QUICK_WINDOWS if asked.quick else NUM_WINDOWS
        self.identity = identity(self.model)
        self.work = asked.work / f"{self.model.stem}-{self.identity[:12]}"
        self.work.mkdir(parents=True, exist_ok=True)
        self.rows: dict[str, dict[str, Any]] = {}
        self._quantized: set[str] = set()

    def prepare(self) -> None:
        """Have windows and reference, from an earlier run where it had the same text."""
        name = f"reference-{text_identity(self.num_windows)[:12]}"
        self.reference, told = self.work / f"{name}.f32", self.work / f"{name}.json"
        if not (self.reference.exists() and told.exists()):
            job = {"does": "logprobs", "num_windows": self.num_windows, "out": str(told)}
            self.child("quality_reference", {**job, "reference": str(self.reference)})
        self.told = json.loads(told.read_text(encoding="utf-8"))

    def measure(self, row: Row) -> dict[str, Any]:
        """Return a row's figures, or the error that stopped it."""
        start_s = time.perf_counter()
        try:
            found = self._measure(row)
        except Unavailable as error:
            found = {"error": str(error)}
        found = {"row": row.name, **found, "seconds": round(time.perf_counter() - start_s, 1)}
        self.rows[row.name] = found
        return found

    def judge(self, row: Row) -> None:
        """Hold a row to its bar, now that those it is compared with are there. Mutates: self"""
        found = self.rows.get(row.name)
        if found is None or "error" in found or not (row.bar or row.meets_peer):
            return
        peer = self.rows.get(LLAMACPP) if row.meets_peer else None
        peer = None if peer is None or "error" in peer else peer
        bar = dict(row.bar)
        if row.meets_peer:
            bar["ppl_more"] = real_models.perplexity_bar(self.identity)
        beside = self.rows.get(row.beside, {})
        if row.beside and "ppl_more" not in beside:
            return
        if row.beside:
            bar["ppl_more"] += abs(beside["ppl_more"])
        found["missed"] = failures(found, bar, peer)

    def _measure(self, row: Row) -> dict[str, Any]:
        path = self._checkpoint(row.checkpoint)
        child, python = "quality_dovetail", sys.executable
        if row.engine == LLAMACPP:
            child, python = "quality_llamacpp", self.peer_python()
            path = next(iter(path.glob("*.gguf")), path) if path.is_dir() else path
            if path.is_dir():
                raise Unavailable("llama.cpp reads GGUF files only")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "row.json")
            job = {**self._job(), "flags": list(row.flags), "out": str(out), "model": str(path)}
            self.child(child, job, python)
            found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found

    def _job(self) -> dict[str, Any]:
        """Return what every engine is told."""
        from benchmarks.quality_reference import TOPICS, topics

        quick = self.asked.quick
        return {
            **self.told,
            "reference": str(self.reference),
            "texts": topics(TOPICS[: self.num_windows]),
            "decode_from": DECODE_FROM,
            "decode_tokens": QUICK_DECODE_TOKENS if quick else DECODE_TOKENS,
            "speed_prompt": self.told["windows"][0],
            "speed_new": QUICK_SPEED_NEW if quick else SPEED_NEW,
        }

    def peer_python(self) -> str:
        venv = self.asked.llamacpp
        python = venv and venv / "bin" / "python"
        if python is None or not python.exists():
            raise Unavailable("absent: --llamacpp names a venv with xllamacpp and numpy")
        return str(python)

    def _checkpoint(self, name: str) -> Path:
        """Return a checkpoint's path; it is made where there is none.

        Weights that transformers wrote are kept for later runs, copies by dovetail's own methods
        are not: those are measured as today's code makes them.
        """
        if name == "file":
            return self.model
        path = self.work / name
        if path.suffix == ".gguf":
            return path
        if name in TYPES and not (path / COMPLETE).exists():
            job = {"does": "weights", "dtypes": [TYPES[name]], "out": str(self.work)}
            self.child("quality_reference", job)
            (path / COMPLETE).touch()
        if name not in TYPES and name not in self._quantized:
            self._quantize(name, path)
            self._quantized.add(name)
        return path

    def _quantize(self, method: str, out: Path) -> None:
        """Write a quantized copy of the bf16 checkpoint."""
        shutil.rmtree(out, ignore_errors=True)
        words = ["quantize", str(self._checkpoint("bf16")), "--method", method, "--out", str(out)]
        if method in CALIBRATED:
            from benchmarks.quality_reference import CALIBRATION, topics

            text = self.work / "calibration.txt"
            text.write_text("\n\n".join(topics(CALIBRATION)), encoding="utf-8")
            words += ["--calibration", str(text), "--calibration-tokens", "16384"]
        self.run([sys.executable, "-m", "dovetail", *words])

    def child(self, module: str, job: Mapping[str, Any], python: str = sys.executable) -> None:
        """Run a module of this folder on a job."""
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump({"model": str(self.model), "threads": self.asked.threads, **job}, file)
            file.flush()
            self.run([python, "-m", f"benchmarks.{module}", file.name])

    def run(self, words: Sequence[str]) -> None:
        """Run a command. Raises: Unavailable with the end of what it said."""
        paths = os.pathsep.join(str(ROOT / part) for part in ("core", "plugins", "kernels"))
        threads = str(self.asked.threads)
        told = {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=os.environ | told,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            if self.asked.verbose:
                print(done.stderr, file=sys.stderr)
            raise Unavailable(" ".join(lines[-2:])[-300:] or f"ended with {done.returncode}")


def identity(model: Path) -> str:
    """Return the hash of a file's content, or of a folder's names, sizes and times."""
    if model.is_file():
        with model.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    facts = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in model.iterdir())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def text_identity(num_windows: int) -> str:
    """Return the hash of the scored text."""
    from benchmarks.quality_reference import TOPICS, topics

    return hashlib.sha256("\0".join(topics(TOPICS[:num_windows])).encode()).hexdigest()


def custom_row(text: str) -> Row:
    """Return the row of "NAME=CHECKPOINT FLAGS". Raises: ValueError"""
    name, equals, rest = text.partition("=")
    if not equals or not rest:
        raise ValueError(text)
    checkpoint, *flags = shlex.split(rest)
    return Row(name=name, checkpoint=checkpoint, flags=tuple(flags))


def chosen(asked: argparse.Namespace) -> list[Row]:
    """Return the rows asked for, in the table's order. Raises: SystemExit"""
    rows = [*ROWS, *asked.row]
    if asked.rows == "all":
        return rows
    wanted = asked.rows.split(";") if asked.rows else [one.name for one in asked.row]
    unknown = set(wanted) - {one.name for one in rows}
    if unknown:
        names = "; ".join(one.name for one in rows)
        raise SystemExit(f"no such row: {', '.join(sorted(unknown))}. There are: {names}.")
    return [one for one in rows if one.name in wanted or one in asked.row]


def facts(bench: Bench) -> dict[str, Any]:
    """Return what the figures hang on beside the code."""
    return {
        "model": bench.model.name,
        "identity": bench.identity,
        "text": text_identity(bench.num_windows),
        "python": platform.python_version(),
        "threads": bench.asked.threads,
        "quick": bench.asked.quick,
    }


def measure(model: Path, rows: Sequence[Row], asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of rows, each told and kept as soon as it is there."""
    bench = Bench(model, asked)
    bench.prepare()
    told = facts(bench)
    if asked.json is not None:  # rows of an earlier run that the bars refer to
        earlier = read_lines(asked.json)
        same = [row for row in earlier if all(row.get(key) == told[key] for key in told)]
        bench.rows = {row["row"]: row for row in same}
    for row in rows:
        found = bench.measure(row)
        bench.judge(row)
        print(table([found]).splitlines()[-1], flush=True)
        _keep({**told, **found}, asked.json)
    for row in rows:  # llama.cpp's may have come after those that are held to it
        before = bench.rows[row.name].get("missed")
        bench.judge(row)
        if bench.rows[row.name].get("missed") != before:
            _keep({**told, **bench.rows[row.name]}, asked.json)
    return [bench.rows[row.name] for row in rows]


def _keep(row: Mapping[str, Any], path: Path | None) -> None:
    """Add a line to a file; the last one of a row counts."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("model", nargs="?", type=Path, help="a GGUF file or a folder")
    made.add_argument("--rows", default="", help='names, with ";" between them, or all')
    made.add_argument("--row", type=custom_row, action="append", default=[], help="one of your own")
    made.add_argument("--quick", action="store_true", help="two windows, shorter timings")
    made.add_argument("--llamacpp", type=Path, help="virtual environment with xllamacpp, numpy")
    made.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    made.add_argument("--work", type=Path, default=CACHE, help="folder of checkpoints (gigabytes)")
    made.add_argument("--json", type=Path, help="file that gets a line for every row")
    made.add_argument("--table", type=Path, help="print the table of such a file")
    made.add_argument("--into", type=Path, help="put the table between the marks of this page")
    made.add_argument("--verbose", action="store_true", help="show what a failing row said")
    return made


def newest(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the last line of every row, by model, in the table's order."""
    order = {row.name: number for number, row in enumerate(ROWS)}
    by_model: dict[str, dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        by_model.setdefault(line["model"], {})[line["row"]] = line
    return {
        model: sorted(rows.values(), key=lambda row: order.get(row["row"], len(order)))
        for model, rows in by_model.items()
    }


def tables(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the tables of all models in the lines, each with what its figures hang on."""
    parts = []
    for model, rows in newest(lines).items():
        row = next((one for one in rows if "ppl_reference" in one), rows[0])
        machines = {one["row"] == LLAMACPP: one["machine"] for one in rows if "machine" in one}
        told = [
            f"{model}: {row.get('tokens', 0)} tokens, perplexity of the reference "
            f"{row.get('ppl_reference', math.nan):.3f}, {row['threads']} thread(s)",
            f"dovetail on {machines.get(False, 'nothing')}",
        ]
        parts.append(f"**{'; '.join(told)}**\n\n{table(rows)}")
    return "\n\n".join(parts)


def put(text: str, page: Path) -> None:
    """Replace what stands between the marks of a page. Raises: SystemExit where there are none"""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page} has no line {BEGIN} with {END} below it")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Measure the rows, or print a table."""
    asked = parser().parse_args()
    if asked.table is not None:
        text = tables(read_lines(asked.table))
        if asked.into is None:
            print(text)
        else:
            put(text, asked.into)
        return 0
    if asked.model is None or not asked.model.exists():
        raise SystemExit("name a GGUF file or a folder of safetensors")
    asked.rows = asked.rows or ("" if asked.row else "all")
    rows = measure(asked.model, chosen(asked), asked)
    print(f"\n{table(rows)}")
    failed = [row["row"] for row in rows if row.get("missed") or "error" in row]
    failed = [name for name in failed if not name.startswith(LLAMACPP)]  # a peer may be absent
    if failed:
        print(f"\nfailed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
