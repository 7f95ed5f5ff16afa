"""The figures that the engine must reach, measured in one run and printed as one table.

`python benchmarks/foundation.py` from a checkout or an installation: time of --help, start-up by
phase, tokens/s at 1, 8 and 32 concurrent requests for the demo model and for a Qwen3-0.6B-shaped
model with random weights, resident memory, size of the wheel, lines per folder. JSON with --out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
    "eos_token_id": 0,
}


def env_of(tree: Path = ROOT) -> dict[str, str]:
    """Return the environment in which dovetail is that of a source tree."""
    paths = os.pathsep.join(str(tree / part) for part in ("core", "plugins", "kernels"))
    return os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}


ENV = env_of()


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def time_help(repeats: int) -> float:
    """Return the median seconds of `dovetail --help` as a whole process."""
    walls = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        command = [sys.executable, "-m", "dovetail", "--help"]
        subprocess.run(command, env=ENV, check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - start_s)
    return statistics.median(walls)


def is_ready(url: str) -> bool:
    """Return whether the server answers /ready with 200."""
    try:
        with urllib.request.urlopen(url + "/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def serving(
    arguments: list[str], log: Path, tree: Path = ROOT
) -> Iterator[tuple[str, float, psutil.Process]]:
    """Start a tree's server and yield (url, seconds to ready, process); stop it at the end."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "dovetail", "serve", *arguments, "--port", str(port)]
    start_s = time.perf_counter()
    with log.open("w") as stream:
        server = subprocess.Popen(command, env=env_of(tree), stdout=stream, stderr=stream)
        try:
            while not is_ready(url):
                if server.poll() is not None or time.perf_counter() - start_s > 300:
                    raise SystemExit(f"the server did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.02)
            yield url, time.perf_counter() - start_s, psutil.Process(server.pid)
        finally:
            server.terminate()
            server.wait(30)


def resident_bytes(process: psutil.Process) -> int:
    """Return the resident memory of a process and its children."""
    family = [process, *process.children(recursive=True)]
    return sum(member.memory_info().rss for member in family)


def processor_s(process: psutil.Process) -> float:
    """Return the processor time of a process and of all below it that still run."""
    family = [process, *process.children(recursive=True)]
    return sum(sum(member.cpu_times()[:2]) for member in family)


def measure_load(
    url: str, vocab: int, prompt_tokens: int, new_tokens: int, concurrency: int, count: int
) -> dict[str, float]:
    """Return what `dovetail bench serve` measures at a fixed number of requests at once."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        options = {
            "--base-url": url,
            "--vocab-size": vocab,
            "--input-len": prompt_tokens,
            "--output-len": new_tokens,
            "--max-concurrency": concurrency,
            "--num-prompts": count,
            "--num-warmups": 2,
            "--seed": count,
            "--output-json": result,
        }
        command = [sys.executable, "-m", "dovetail", "bench", "serve", "--ignore-eos"]
        command += [str(word) for option in options.items() for word in option]
        subprocess.run(command, env=ENV, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(result.read_text())["results"]
    times = {
        f"{name}_{which}_ms": found[f"{name}_ms"].get(which)
        for name in ("ttft", "tpot", "itl")
        for which in ("median", "p99")
    }
    return {
        "requests": found["requests"],
        "failed": found["failed"],
        "tokens_per_s": found["output_tokens_per_s"],
        **times,
    }


def measure_server(
    name: str, arguments: list[str], vocab: int, prompt_tokens: int, new_tokens: int, rounds: int
) -> dict[str, object]:
    """Return start-up, memory and throughput of one model at 1, 8 and 32 requests."""
    log = Path(tempfile.gettempdir()) / f"dovetail-bench-{name}.log"
    with serving(arguments, log) as (url, ready_s, process):
        levels = {}
        for concurrency in (1, 8, 32):
            count = max(concurrency, 4) * rounds
            levels[concurrency] = measure_load(
                url, vocab, prompt_tokens, new_tokens, concurrency, count
            )
            print(name, concurrency, json.dumps(levels[concurrency]), flush=True)
        memory = resident_bytes(process)
    phases = [line for line in log.read_text().splitlines() if "took" in line or "ready in" in line]
    return {"ready_s": ready_s, "resident_bytes": memory, "levels": levels, "phases": phases}


def write_qwen3(folder: Path) -> None:
    """Write a config for random weights, with the demo model's tokenizer beside it."""
    demo = ROOT / "core" / "dovetail" / "demo_model"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(QWEN3_06B))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(demo / name, folder / name)


def wheel_bytes() -> int:
    """Return the size of the wheel built from this checkout."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
        subprocess.run([*command, "-w", folder, str(ROOT)], check=True)
        return next(Path(folder).glob("*.whl")).stat().st_size


def count_lines() -> dict[str, int]:
    """Return lines of Python per top-level folder and per folder of core."""
    folders = ["core/dovetail", "plugins", "kernels", "contrib", "tests", "examples", "benchmarks"]
    folders += sorted(
        f"core/dovetail/{p.name}" for p in (ROOT / "core/dovetail").iterdir() if p.is_dir()
    )
    return {
        folder: sum(path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py"))
        for folder in folders
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--only", nargs="*", default=["help", "demo", "qwen3", "size"])
    arguments = parser.parse_args()
    figures: dict[str, object] = {"cores": os.cpu_count(), "threads": "default"}
    if "help" in arguments.only:
        figures["help_s"] = time_help(9)
    if "demo" in arguments.only:
        figures["demo"] = measure_server("demo", [], 1500, 64, 64, 4)
    if "qwen3" in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            write_qwen3(Path(folder) / "qwen3-0.6b")
            flags = [f"{folder}/qwen3-0.6b", "--load-format", "dummy"]
            figures["qwen3-0.6b"] = measure_server("qwen3-0.6b", flags, 30000, 64, 16, 1)
    if "size" in arguments.only:
        figures["wheel_bytes"] = wheel_bytes()
        figures["lines"] = count_lines()
    print(json.dumps(figures, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
