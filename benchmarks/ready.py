"""From the command to a server that answers: time, memory and the first token, beside llama.cpp.

For one GGUF file, in turns: dovetail with an empty cache of packed weights, a second start that
maps them, a second server beside the first, and llama.cpp's server (the wheel `xllamacpp` in the
venv that --xllamacpp names). Wall and processor time count from the command until the server says
that it is ready; memory is the proportional share (PSS: shared pages are divided among who maps
them) at its peak and after the first answer; the floor is reading the file's bytes. The file is in
the page cache; with --cold it is dropped from it before every start.

Every start comes PAUSE_S after the end of the last server. A virtual machine may hand freed memory
back to its host after some seconds, and getting it again costs far more than clearing it (here
0.94 s a GB in place of 0.13 s). Without a pause, a server that takes memory at once gets what the
one before it has just freed, and one that takes it later does not.

    PYTHONPATH=core:plugins:kernels python benchmarks/ready.py FILE.gguf \\
        [--xllamacpp VENV/bin/python] [--rounds 3] [--threads 2] [--cold]

With --write the file is made first: random numbers in the shape of an 8B model in Q4_K_M, with the
vocabulary of another file (`random-8b.gguf --write --like qwen.gguf`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
SLOT_TOKENS = 1024
PAUSE_S = 6.0
LIMIT_S = 600.0
PROMPT = "Name the planets, one a line, the largest first, and say of each how far it is away."
LARGE = {"hidden": 4096, "inner": 14336, "layers": 32, "heads": 32, "kv_heads": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one start took."""

    ready_s: float
    processor_s: float
    peak_mib: float
    resident_mib: float
    first_token_s: float


def main() -> None:
    """Measure and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--xllamacpp", metavar="PYTHON", help="the Python of a venv with the wheel")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="drop the file from the page cache")
    parser.add_argument("--write", action="store_true", help="write the file of random numbers")
    parser.add_argument("--like", type=Path, help="the file whose vocabulary --write takes")
    args = parser.parse_args()
    if args.write:
        write_random(args.file, args.like)
    found: dict[str, list[Start]] = {}
    with tempfile.TemporaryDirectory() as compiled:
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
        with started(args, [sys.executable, "-m", "dovetail", "serve", "--port"], environment):
            pass  # this compiles it
        for _ in range(args.rounds):
            for name, start in one_round(args, environment):
                found.setdefault(name, []).append(start)
    floor_s = _read_s(args.file)
    print(f"{args.file.name}: {args.file.stat().st_size / 2**20:.0f} MiB, read in {floor_s:.2f} s")
    print(f"{'':<26}{'ready s':>9}{'CPU s':>8}{'peak MiB':>10}{'then MiB':>10}{'token s':>9}")
    for name, starts in found.items():
        columns = (
            statistics.median([getattr(one, field.name) for one in starts])
            for field in fields(Start)
        )
        ready, processor, peak, resident, token = columns
        print(
            f"{name:<26}{ready:>9.2f}{processor:>8.2f}{peak:>10.0f}{resident:>10.0f}{token:>9.2f}"
        )


def one_round(args: argparse.Namespace, environment: dict[str, str]) -> Iterator[tuple[str, Start]]:
    """Yield each kind of start with what it took."""
    with tempfile.TemporaryDirectory() as cache:
        ours = (
            [sys.executable, "-m", "dovetail", "serve", str(args.file), "--max-model-len",
             str(SLOT_TOKENS), "--num-threads", str(args.threads), "--kv-cache-memory-bytes",
             str(256 << 20), "--port"],
            environment | {"XDG_CACHE_HOME": cache},
        )  # fmt: skip
        weights = Path(cache) / "dovetail" / "weights"
        with started(args, *ours) as start:
            yield "dovetail, first start", start
            wait_for_entry(weights)
        with started(args, *ours) as start:
            yield "dovetail, second start", start
            with started(args, *ours) as other:
                yield "another dovetail meanwhile", other
    if args.xllamacpp:
        code = "import sys; port = sys.argv.pop(); sys.argv.insert(2, port); "
        code += "import benchmarks.peers.llamacpp_server as server; server.main()"
        command = [args.xllamacpp, "-P", "-c", code, str(args.file), "1", str(SLOT_TOKENS)]
        command += [str(args.threads)]
        with started(args, command, os.environ | {"PYTHONPATH": str(ROOT)}) as start:
            yield "llama.cpp", start


@contextmanager
def started(
    args: argparse.Namespace, command: list[str], environment: dict[str, str]
) -> Iterator[Start]:
    """Start a server on a free port, ask it once, and yield what that took; stop it then."""
    if args.cold:
        _drop(args.file)
    time.sleep(PAUSE_S)
    port = _free_port()
    begin_s = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([*command, str(port)], env=environment, stdout=log, stderr=log)
        family = _Family(server.pid)
        try:
            url = f"http://127.0.0.1:{port}"
            while not _answers(f"{url}/health"):
                if server.poll() is not None or time.perf_counter() - begin_s > LIMIT_S:
                    log.seek(0)
                    raise SystemExit(f"it did not start:\n{log.read()[-2000:].decode()}")
                time.sleep(0.02)
            ready_s, processor_s = time.perf_counter() - begin_s, family.processor_s()
            token_s = _first_token_s(url)
            yield Start(
                ready_s=ready_s, processor_s=processor_s, first_token_s=token_s,
                resident_mib=family.share_mib(), peak_mib=family.peak_mib,
            )  # fmt: skip
        finally:
            family.stop()
            server.terminate()
            server.wait(60)


class _Family:
    """A process and its children, whose memory is watched."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.peak_mib = 0.0
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def share_mib(self) -> float:
        """Return the proportional share of memory now."""
        total = 0.0
        for one in self._all():
            try:
                total += one.memory_full_info().pss / 2**20
            except psutil.Error:  # it has ended
                continue
        return total

    def processor_s(self) -> float:
        """Return the processor time of all."""
        times = [one.cpu_times() for one in self._all()]
        return sum(one.user + one.system for one in times)

    def stop(self) -> None:
        """Watch no more."""
        self._is_over.set()
        self._watcher.join()

    def _all(self) -> list[psutil.Process]:
        try:
            return [self._process, *self._process.children(recursive=True)]
        except psutil.Error:
            return []

    def _watch(self) -> None:
        """Read the shares now and then: the system walks the page tables for that, and page faults
        wait meanwhile."""
        read_s = 0.0
        while not self._is_over.wait(max(0.1, 20 * read_s)):
            begin_s = time.perf_counter()
            self.peak_mib = max(self.peak_mib, self.share_mib())
            read_s = time.perf_counter() - begin_s


def wait_for_entry(folder: Path) -> None:
    """Wait until packed weights are written and checked, at most two minutes: small models have
    none."""
    for _ in range(1200):
        if any(folder.glob("*.packed.checked")):
            return
        time.sleep(0.1)


def write_random(target: Path, like: Path) -> None:
    """Write a file with the shape of an 8B model in Q4_K_M, and another file's vocabulary."""
    import gguf
    from gguf import GGMLQuantizationType as Kind

    reader = gguf.GGUFReader(like)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)
    writer = gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            _copy_field(writer, name, field)
    writer.add_context_length(8192)
    writer.add_embedding_length(LARGE["hidden"])
    writer.add_feed_forward_length(LARGE["inner"])
    writer.add_block_count(LARGE["layers"])
    writer.add_head_count(LARGE["heads"])
    writer.add_head_count_kv(LARGE["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    generator = np.random.default_rng(0)

    def add(name: str, rows: int, columns: int, kind: Kind) -> None:
        writer.add_tensor(name, _blocks(generator, rows, columns, kind), raw_dtype=kind)

    def add_norm(name: str) -> None:
        writer.add_tensor(name, np.ones(LARGE["hidden"], dtype=np.float32))

    hidden, inner = LARGE["hidden"], LARGE["inner"]
    kv = hidden // LARGE["heads"] * LARGE["kv_heads"]
    add("token_embd.weight", vocabulary, hidden, Kind.Q4_K)
    add("output.weight", vocabulary, hidden, Kind.Q6_K)
    add_norm("output_norm.weight")
    for layer in range(LARGE["layers"]):
        better = Kind.Q6_K if layer % 2 else Kind.Q4_K  # half of them, as in Q4_K_M
        for name, rows, columns, kind in (
            ("attn_q", hidden, hidden, Kind.Q4_K), ("attn_k", kv, hidden, Kind.Q4_K),
            ("attn_v", kv, hidden, better), ("attn_output", hidden, hidden, Kind.Q4_K),
            ("ffn_gate", inner, hidden, Kind.Q4_K), ("ffn_up", inner, hidden, Kind.Q4_K),
            ("ffn_down", hidden, inner, better),
        ):  # fmt: skip
            add(f"blk.{layer}.{name}.weight", rows, columns, kind)
        add_norm(f"blk.{layer}.attn_norm.weight")
        add_norm(f"blk.{layer}.ffn_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _blocks(generator: np.random.Generator, rows: int, columns: int, kind: object) -> np.ndarray:
    """Return random blocks whose steps are small numbers. Shapes: [rows, bytes] uint8"""
    import gguf

    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (rows * columns // values, size), dtype=np.uint8)
    step = np.frombuffer(np.float16(1e-4).tobytes(), dtype=np.uint8)
    places = [208] if size == 210 else [0, 2]  # Q6_K has its step at the end
    for place in places:
        blocks[:, place : place + 2] = step
    return blocks.reshape(rows, -1)


def _copy_field(writer: object, name: str, field: object) -> None:
    """Copy a setting of another file. Mutates: writer"""
    import gguf

    assert isinstance(writer, gguf.GGUFWriter) and isinstance(field, gguf.ReaderField)
    kind, *rest = field.types
    writer.add_key_value(name, field.contents(), kind, sub_type=rest[-1] if rest else None)


def _first_token_s(url: str) -> float:
    body = json.dumps({"prompt": PROMPT, "max_tokens": 1, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    begin_s = time.perf_counter()
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        answer.read()
    return time.perf_counter() - begin_s


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _read_s(path: Path) -> float:
    """Return the seconds of reading a file in the page cache once."""
    buffer = bytearray(8 << 20)
    begin_s = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - begin_s


def _drop(path: Path) -> None:
    """Drop a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
