"""The second turn of an agent's session: its first token beside what its new tokens alone cost.

One server, random weights of a small model. In turns, for conversations that share nothing: the
first turn of a long prompt with tools, the second turn, which repeats it with the tools in another
order, and a prompt of as many tokens as were new in it. Run on a quiet machine with
PYTHONPATH=core:plugins:kernels from the repository root:

    python benchmarks/second_turn.py --prompt-tokens 8000
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from foundation import QWEN3_06B, serving, write_qwen3

SMALLER = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "vocab_size": 2048,
}
NUM_TOOLS = 20
ANSWER_TOKENS = 16
WORDS = Path(__file__).parents[1].joinpath("README.md").read_text().split()

Json = dict[str, Any]


class Timed:
    """The first token of a streamed answer: its time, the prompt's tokens, those from the cache."""

    def __init__(self, url: str, path: str, body: Json) -> None:
        self.text = ""
        self.tokens = self.cached = 0
        parts = urlsplit(url)
        connection = HTTPConnection(str(parts.hostname), parts.port)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        payload = json.dumps(body | options | {"max_tokens": ANSWER_TOKENS, "ignore_eos": True})
        start_s = time.perf_counter()
        connection.request("POST", path, payload, {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(response.read().decode())
        self.first_s = 0.0
        while line := response.readline():
            if line.startswith(b"data: {"):
                self._read(json.loads(line[6:]), time.perf_counter() - start_s)
        connection.close()

    def _read(self, event: Json, now_s: float) -> None:
        for choice in event.get("choices", ()):
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            if text and not self.text:
                self.first_s = now_s
            self.text += text
        if usage := event.get("usage"):
            self.tokens = usage["prompt_tokens"]
            self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def words(random: Random, count: int) -> str:
    return " ".join(random.choice(WORDS) for _ in range(count))


def tools(random: Random) -> list[Json]:
    properties = {name: {"type": "string", "description": "text"} for name in ("path", "text")}
    parameters = {"type": "object", "properties": properties}
    functions = [
        {"name": f"tool_{number}", "description": words(random, 8), "parameters": parameters}
        for number in range(NUM_TOOLS)
    ]
    return [{"type": "function", "function": function} for function in functions]


def measure(url: str, random: Random, prompt_tokens: int, new_words: int) -> tuple[Timed, ...]:
    """Return the first turn, the second, and a prompt of the second's new tokens alone."""
    offered = tools(random)
    turns: list[Json] = [
        {"role": "system", "content": words(random, prompt_tokens // 6)},
        {"role": "user", "content": words(random, 40)},
    ]
    path = "/v1/chat/completions"
    first = Timed(url, path, {"messages": turns, "tools": offered})
    turns.append({"role": "assistant", "content": first.text})
    turns.append({"role": "user", "content": words(random, new_words)})
    random.shuffle(offered)
    second = Timed(url, path, {"messages": turns, "tools": offered})
    ids = [random.randrange(300, 2000) for _ in range(second.tokens - second.cached)]
    return first, second, Timed(url, "/v1/completions", {"prompt": ids})


def processor() -> str:
    """Return the processor's name, as lscpu has it."""
    lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    names = [line for line in lines.splitlines() if line.startswith("Model name")]
    return names[0].partition(":")[2].strip() if names else platform.processor()


def main() -> None:
    """Print the medians of the rounds and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt-tokens", type=int, default=8000)
    parser.add_argument("--new-words", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("serve", nargs="*", help="further arguments of dovetail serve, after --")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        write_qwen3(model)
        longest = {"max_position_embeddings": 2 * given.prompt_tokens + 8000}
        (model / "config.json").write_text(json.dumps(QWEN3_06B | SMALLER | longest))
        flags = [str(model), "--load-format", "dummy", "--enable-prompt-tokens-details"]
        flags += given.serve
        with serving(flags, Path(name) / "log") as (url, _, _):
            random = Random(0)
            measure(url, random, 200, given.new_words)
            rounds = []
            for _ in range(given.rounds):
                rounds.append(measure(url, random, given.prompt_tokens, given.new_words))
                print(" ".join(f"{turn.first_s * 1e3:.0f} ms" for turn in rounds[-1]), flush=True)
    report(rounds)


def report(rounds: list[tuple[Timed, ...]]) -> None:
    first, second, alone = zip(*rounds, strict=True)
    print(f"{processor()}, {os.cpu_count()} cores, OMP_NUM_THREADS={os.getenv('OMP_NUM_THREADS')}")
    for label, turns in (("first turn", first), ("second turn", second), ("new tokens", alone)):
        seconds = statistics.median(turn.first_s for turn in turns)
        tokens = statistics.median(turn.tokens for turn in turns)
        cached = statistics.median(turn.cached for turn in turns)
        print(f"{label:12} {tokens:7.0f} tokens, {cached:7.0f} cached, {seconds * 1e3:9.1f} ms")
    ratios = sorted(two.first_s / new.first_s for two, new in zip(second, alone, strict=True))
    middle = statistics.median(ratios)
    print(f"second turn / its new tokens alone: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
