"""dovetail's encoders beside sentence-transformers, ONNX Runtime and OpenVINO, in one run.

    python -m benchmarks.embeddings FOLDER --venv PEERS --threads 2 --rounds 3

FOLDER is a sentence-transformers folder: a real one, or one of random weights in the shape of BERT-
base (`python -m benchmarks.embeddings_peer bert-base REAL FOLDER`). Every engine is a process of
its own that stays loaded; they take turns (A B C, the next round begins with B). Measures: `mixed`
(texts of 8 to 512 tokens, sentences a second) and `short` (one text of 8 words, milliseconds).
`--count 0` measures `short` alone, which takes seconds. Texts are tokenized within the measure.
Peers batch 32 texts of like length; ONNX Runtime and OpenVINO run what `python -m
benchmarks.embeddings_peer export` has made of the same weights. Each engine's vectors are compared
with torch's in float32 (cosine).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = """
the a of to in is and that it for on with as was at by an be this from or which not are
bread stock market river mountain science history engine water light music number paper
house morning winter question answer system language model computer teacher student city
green quickly running slowly bright small large between under above never always perhaps
""".split()  # noqa: SIM905
SHORT = "how do I bake bread at home"
REFERENCE = "sentence-transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """An engine: how it is called here, and what runs it with which arguments."""

    name: str
    python: str
    arguments: tuple[str, ...]


def texts(count: int, most_words: int) -> list[str]:
    """Return texts of 6 to `most_words` words, lengths spread evenly in their logarithm."""
    draw = random.Random(20)
    sizes = [round(6 * (most_words / 6) ** draw.random()) for _ in range(count)]
    return [" ".join(draw.choices(WORDS, k=size)) for size in sizes]


class Peer:
    """One engine in a process that answers a line of JSON by another."""

    def __init__(self, contender: Contender, threads: int) -> None:
        """Start it and wait until it has loaded. Raises: RuntimeError with what it said"""
        self.name = contender.name
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [contender.python, "-m", "benchmarks.embeddings_peer", *contender.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.ask({"texts": [SHORT]})

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return what it answers. Raises: RuntimeError when it has ended"""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def measured(peer: Peer, mixed: list[str]) -> dict[str, float]:
    """Return sentences a second of the mixed texts (NaN of none), and the milliseconds of a short
    one: the median of a block of calls, and the least."""
    many = peer.ask({"texts": mixed})["seconds"] if mixed else math.nan
    one = [1e3 * peer.ask({"texts": [SHORT]})["seconds"] for _ in range(30)]
    return {"mixed": len(mixed) / many, "short": statistics.median(one), "least": min(one)}


def cosines(peer: Peer, wanted: list[list[float]], some: list[str]) -> tuple[float, float]:
    """Return the mean and the least cosine to the reference's vectors."""
    got = peer.ask({"texts": some, "tells": True})["vectors"]
    found = [
        sum(a * b for a, b in zip(x, y, strict=True)) for x, y in zip(got, wanted, strict=True)
    ]
    return statistics.mean(found), min(found)


def report(rows: dict[str, list[dict[str, float]]], quality: dict[str, tuple[float, float]]) -> str:
    """Return the table: medians, and ratios to the first engine of all."""
    ours = next(iter(rows))
    base = {key: statistics.median(row[key] for row in rows[ours]) for key in ("mixed", "short")}
    head = f"{'mixed/s':>9} {'spread':>7} {'short ms':>9} {'least':>6}"
    lines = [f"{'engine':28} {head}  {ours}: mixed, short"]
    for name, taken in rows.items():
        many, one = ([row[key] for row in taken] for key in ("mixed", "short"))
        middle, spread = statistics.median(many), (max(many) - min(many)) / statistics.median(many)
        ratio = f"{base['mixed'] / middle:.2f}x, {statistics.median(one) / base['short']:.2f}x"
        mean, least = quality.get(name, (float("nan"),) * 2)
        lines.append(
            f"{name:28} {middle:9.1f} {spread:7.0%} {statistics.median(one):9.2f} "
            f"{min(row['least'] for row in taken):6.2f}  {ratio:14} "
            f"cosine {mean:.5f}, least {least:.5f}"
        )
    return "\n".join(lines)


def contenders(arguments: argparse.Namespace) -> list[Contender]:
    """Return the engines: dovetail's by their flags, then the peers."""
    folder, own, other = str(arguments.folder), sys.executable, arguments.venv
    found = [
        Contender(
            name=f"dovetail {flags}", python=own, arguments=("dovetail", folder, *flags.split())
        )
        for flags in arguments.engine
    ]
    python = f"{other}/bin/python"
    found += [
        Contender(name=name, python=python, arguments=(name, folder)) for name in arguments.peers
    ]
    return found


def main() -> None:
    """Run everything that was asked for and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--venv", default=sys.prefix, help="environment with the peers")
    parser.add_argument("--engine", action="append", help="flags of dovetail, once per engine")
    parser.add_argument(
        "--peers",
        nargs="*",
        default=[REFERENCE, "onnxruntime", "openvino", "onnxruntime-int8", "openvino-int8"],
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=128, help="mixed texts; 0: a short one alone")
    parser.add_argument("--words", type=int, default=450)
    arguments = parser.parse_args()
    arguments.engine = arguments.engine or ["--dtype float32"]
    mixed = texts(arguments.count, arguments.words)
    peers = [Peer(one, arguments.threads) for one in contenders(arguments)]
    try:
        rows: dict[str, list[dict[str, float]]] = {peer.name: [] for peer in peers}
        for number in range(arguments.rounds):
            for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
                rows[peer.name].append(measured(peer, mixed))
        some = mixed[:32]
        named = {peer.name: peer for peer in peers}
        quality = {}
        if REFERENCE in named and some:
            wanted = named[REFERENCE].ask({"texts": some, "tells": True})["vectors"]
            quality = {name: cosines(peer, wanted, some) for name, peer in named.items()}
    finally:
        for peer in peers:
            peer.close()
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, {arguments.threads} threads, {arguments.folder}")
    print(report(rows, quality))


if __name__ == "__main__":
    main()
