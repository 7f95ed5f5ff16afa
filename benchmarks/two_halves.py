"""Time between tokens while long prompts come in: prefill and decode apart, with one core each,
against one engine with chunked prefill on both cores.

Short conversations stream all the time, and every few seconds a long prompt comes in between. Both
arrangements answer the same load in one run, in turns, so that ratios hold on any machine.

    python benchmarks/two_halves.py --tokens 4000 --hidden 1024 --layers 16
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from kv_store import write_model

READY = re.compile(r"ready in [\d.]+ s at (http://\S+)")
START_LIMIT_S = 180.0
PORT = 23_456


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4000, help="tokens of a long prompt")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between long prompts")
    parser.add_argument("--streams", type=int, default=4, help="conversations at a time")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a turn")
    parser.add_argument("--turns", type=int, default=2, help="turns of each arrangement")
    parser.add_argument("--hidden", type=int, default=512, help="hidden size of the model")
    parser.add_argument("--layers", type=int, default=8, help="layers of the model")
    parser.add_argument("--chunk", type=int, default=512, help="tokens of a step of one engine")
    return parser.parse_args()


@contextmanager
def started(command: str, *words: str) -> Iterator[str]:
    """Give the URL of a process of dovetail; it ends with the block."""
    with tempfile.NamedTemporaryFile("w+", prefix="two-halves") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", command, *words, "--port", "0"],
            stdout=log,
            stderr=log,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        try:
            yield _url_of(process, Path(log.name))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _url_of(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        found = READY.search(log.read_text(errors="replace"))
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise RuntimeError(f"it did not start: {log.read_text(errors='replace')[-3000:]}")


def flags(model: Path, args: argparse.Namespace, cores: str, role: str | None) -> list[str]:
    """Return the flags of a server on some cores."""
    words = [
        *(str(model), "--cpu-cores", cores, "--max-model-len", str(args.tokens + 256)),
        *("--max-num-batched-tokens", str(args.chunk), "--disable-uvicorn-access-log"),
        *("--kv-cache-memory-bytes", str(1 << 30)),
    ]
    if role is not None:
        number = int(role == "kv_consumer")
        keys = {"kv_connector": "p2p", "kv_role": role, "kv_port": PORT, "kv_rank": number}
        words += ["--kv-transfer-config", json.dumps(keys)]
    return words


async def converse(client: httpx.AsyncClient, until_s: float, seed: int) -> list[float]:
    """Return the times between the tokens of one conversation after the other."""
    gaps: list[float] = []
    number = seed
    while time.monotonic() < until_s:
        number += 1000
        prompt = [3 + (number + 7 * i) % 60 for i in range(20)]
        body = {"prompt": prompt, "max_tokens": 200, "ignore_eos": True, "stream": True}
        last_s = 0.0
        async with client.stream("POST", "/v1/completions", json=body) as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now_s = time.monotonic()
                if last_s:
                    gaps.append(now_s - last_s)
                last_s = now_s
                if now_s > until_s:
                    break
    return gaps


async def interrupt(
    client: httpx.AsyncClient, until_s: float, seed: int, args: argparse.Namespace
) -> list[float]:
    """Send a long prompt every few seconds; return how long each took to its first token."""
    took = []
    number = seed
    while time.monotonic() < until_s:
        number += 1
        began_s = time.monotonic()
        prompt = [3 + (number * 31 + i * i + i // 7) % 60 for i in range(args.tokens)]
        answer = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
        answer.raise_for_status()
        took.append(time.monotonic() - began_s)
        await asyncio.sleep(max(0.0, args.every - took[-1]))
    return took


async def turn(url: str, args: argparse.Namespace, seed: int) -> dict[str, list[float]]:
    """Return the times of one turn."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        until_s = time.monotonic() + args.seconds
        talks = [converse(client, until_s, seed + i) for i in range(args.streams)]
        longs, *gaps = await asyncio.gather(interrupt(client, until_s, seed, args), *talks)
    return {"gaps": [gap for one in gaps for gap in one], "first": longs}


def told(name: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Print and return what one arrangement took."""
    if not times["gaps"] or not times["first"]:
        raise SystemExit(f"{name}: too little came in time; raise --seconds, or lower --tokens")
    gaps = np.array(times["gaps"]) * 1e3
    facts = {
        "p50_ms": float(np.percentile(gaps, 50)),
        "p99_ms": float(np.percentile(gaps, 99)),
        "worst_ms": float(gaps.max()),
        "tokens_per_s": len(gaps) / times["seconds"][0],
        "long_first_token_s": float(np.median(times["first"])),
    }
    print(name.ljust(10), " ".join(f"{key} {value:.2f}" for key, value in facts.items()))
    return facts


def main() -> None:
    """Measure and print."""
    args = arguments()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="two-halves") as folder:
        model = write_model(Path(folder) / "model", args, beyond=512)
        for number in range(args.turns):
            with started("serve", *flags(model, args, "0-1", None)) as url:
                _add(found, "together", asyncio.run(turn(url, args, 10_000 * number)), args)
            with (
                started("serve", *flags(model, args, "0", "kv_producer")) as prefill,
                started("serve", *flags(model, args, "1", "kv_consumer")) as decode,
                started("route", "--prefill", prefill, "--decode", decode) as url,
            ):
                _add(found, "apart", asyncio.run(turn(url, args, 10_000 * number)), args)
    facts = {name: told(name, times) for name, times in found.items()}
    ratio = facts["together"]["p99_ms"] / facts["apart"]["p99_ms"]
    print(f"time between tokens, p99: apart {ratio:.1f} times as short as together")
    print(json.dumps(facts))


def _add(
    found: dict[str, dict[str, list[float]]],
    name: str,
    times: dict[str, list[float]],
    args: argparse.Namespace,
) -> None:
    kept = found.setdefault(name, {"gaps": [], "first": [], "seconds": [0.0]})
    kept["gaps"] += times["gaps"]
    kept["first"] += times["first"]
    kept["seconds"][0] += args.seconds


if __name__ == "__main__":
    main()
