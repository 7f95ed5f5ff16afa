"""The prefix-aware router against round robin, with two real engines each and shared prefixes.

Both servers are started once and loaded in turns with the same requests; random weights of a small
model. Neither engine's cache holds all prefixes, both together do. Run on a quiet machine with
PYTHONPATH=core:plugins:kernels from the repository root: python benchmarks/routed_engines.py
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from random import Random

from foundation import QWEN3_06B, serving, write_qwen3
from loads import percentile, run_level
from many_engines import CORES, SMALLER

ROUTERS = ("round_robin", "prefix_aware")
ROUNDS = 4
NUM_REQUESTS = 64
CONCURRENCY = 4
NUM_PREFIXES = 8
PREFIX_TOKENS, OWN_TOKENS, NEW_TOKENS = 768, 64, 16
NUM_BLOCKS = 288
"""Of 16 tokens: five prefixes and what runs."""


def requests(seed: int) -> list[dict[str, object]]:
    """Return one round's requests; the prefixes are those of every round."""
    prefixes = [_ids(Random(number), PREFIX_TOKENS) for number in range(NUM_PREFIXES)]
    random = Random(seed)
    return [
        {
            "prompt": random.choice(prefixes) + _ids(random, OWN_TOKENS),
            "max_tokens": NEW_TOKENS,
            "ignore_eos": True,
        }
        for _ in range(NUM_REQUESTS)
    ]


def _ids(random: Random, count: int) -> list[int]:
    return [random.randrange(1000) for _ in range(count)]


def cache_counters(url: str) -> tuple[float, float]:
    """Return the tokens found in prefix caches and those looked up, of all engines."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()

    def total(name: str) -> float:
        found = re.findall(rf"^dovetail:{name}(?:_total)?\{{.*\}} (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    return total("prefix_cache_hits"), total("prefix_cache_queries")


def loaded(url: str, seed: int) -> tuple[float, list[float]]:
    """Return the share of prompt tokens found cached and the times to first token of a round."""
    before = cache_counters(url)
    _, timings = asyncio.run(run_level(url, requests(seed), CONCURRENCY))
    errors = [timing.error for timing in timings if timing.error]
    if errors:
        raise SystemExit(f"requests failed: {errors[0]}")
    after = cache_counters(url)
    share = (after[0] - before[0]) / (after[1] - before[1])
    return share, [timing.events_s[0] - timing.start_s for timing in timings]


def main() -> None:
    """Print the hits and times to first token of both routers."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_qwen3(folder / "model")
        (folder / "model" / "config.json").write_text(json.dumps(QWEN3_06B | SMALLER))
        common = [str(folder / "model"), "--load-format", "dummy", "--max-model-len", "1024"]
        common += ["--num-gpu-blocks-override", str(NUM_BLOCKS), "--cpu-cores", ",".join(CORES)]
        common += ["--data-parallel-size", "2"]
        urls = {
            router: stack.enter_context(
                serving([*common, "--data-parallel-router", router], folder / router)
            )[0]
            for router in ROUTERS
        }
        shares: dict[str, list[float]] = {router: [] for router in ROUTERS}
        first_s: dict[str, list[float]] = {router: [] for router in ROUTERS}
        for number in range(-1, ROUNDS):
            for router, url in urls.items():
                share, times_s = loaded(url, number)
                if number >= 0:  # the first round warms up
                    shares[router].append(share)
                    first_s[router] += times_s
        for router in ROUTERS:
            times_s = first_s[router]
            print(
                f"{router}: {statistics.fmean(shares[router]):.1%} of prompt tokens cached "
                f"({min(shares[router]):.1%} to {max(shares[router]):.1%}), first token "
                f"{statistics.fmean(times_s) * 1e3:.0f} ms on average, "
                f"{percentile(times_s, 0.5) * 1e3:.0f} median, "
                f"{percentile(times_s, 0.99) * 1e3:.0f} p99"
            )


if __name__ == "__main__":
    main()
