"""Two engines behind one server beside two servers by hand, each on half of two cores.

All are started once and loaded in turns; random weights of a small model. Run on a quiet machine
with PYTHONPATH=core:plugins:kernels from the repository root: python benchmarks/many_engines.py
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random

from foundation import QWEN3_06B, serving, write_qwen3
from loads import run_level

ROUNDS = 5
NUM_REQUESTS = 64
CONCURRENCY = 16
PROMPT_TOKENS = 128
NEW_TOKENS = 48
SMALLER = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
CORES = ("0", "1")


async def rate(urls: list[str], seed: int) -> float:
    """Return tokens a second of all servers, the requests dealt out to them in turn."""
    random = Random(seed)
    bodies: list[dict[str, object]] = [
        {
            "prompt": [random.randrange(1000) for _ in range(PROMPT_TOKENS)],
            "max_tokens": NEW_TOKENS,
            "ignore_eos": True,
        }
        for _ in range(NUM_REQUESTS)
    ]
    count = len(urls)
    results = await asyncio.gather(
        *(run_level(url, bodies[i::count], CONCURRENCY // count) for i, url in enumerate(urls))
    )
    errors = [timing.error for _, timings in results for timing in timings if timing.error]
    if errors:
        raise SystemExit(f"requests failed: {errors[0]}")
    tokens = sum(timing.tokens for _, timings in results for timing in timings)
    return tokens / max(seconds for seconds, _ in results)


def main() -> None:
    """Print the rates of every way and their ratios to the servers by hand."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_qwen3(folder / "model")
        (folder / "model" / "config.json").write_text(json.dumps(QWEN3_06B | SMALLER))
        common = [str(folder / "model"), "--load-format", "dummy", "--max-model-len", "512"]

        def url_of(label: str, *flags: str) -> str:
            url, _, _ = stack.enter_context(serving([*common, *flags], folder / label))
            return url

        several = ("--data-parallel-size", "2", "--cpu-cores", ",".join(CORES))
        ways = {
            "by hand": [url_of(f"hand{core}", "--cpu-cores", core) for core in CORES],
            "one API process": [url_of("one", *several)],
            "two API processes": [url_of("two", *several, "--api-server-count", "2")],
        }
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(-1, ROUNDS):
            for way, urls in ways.items():
                found = asyncio.run(rate(urls, number))
                if number >= 0:  # the first round warms up
                    rates[way].append(found)
        for way, found in rates.items():
            ratios = [a / b for a, b in zip(found, rates["by hand"], strict=True)]
            print(
                f"{way}: {statistics.median(found):.0f} tokens/s, "
                f"{statistics.median(ratios):.3f} of by hand "
                f"({min(ratios):.3f} to {max(ratios):.3f})"
            )


if __name__ == "__main__":
    main()
