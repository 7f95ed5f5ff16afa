"""The second turn of an agent's session: its first token beside what its new tokens alone cost.

One server, random weights of a small model. In turns, for conversations that share nothing: the
first turn of a long prompt with tools; the second turn, which repeats it with the tools in another
order; as many new tokens behind the same prefix, sent as ids, so that the server has no text to
render or tokenize; and as many tokens without a prefix. The time to the first token is that of an
answer of one token. Run on a quiet machine with PYTHONPATH=core:plugins:kernels from the repository
root:

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
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

from foundation import QWEN3_06B, serving, write_qwen3

SMALLER = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
}
NUM_TOOLS = 20
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LABELS = ("first turn", "second turn", "its new tokens as ids behind the prefix", "without it")
WORDS = (Path(__file__).parents[1] / "README.md").read_text().split()

Json = dict[str, Any]


class Timed:
    """An answer of one token: its time, the prompt's tokens, and those from the cache."""

    def __init__(self, url: str, path: str, body: Json) -> None:
        start_s = time.perf_counter()
        answer = posted(url + path, body | {"max_tokens": 1, "ignore_eos": True})
        self.seconds = time.perf_counter() - start_s
        self.tokens = answer["usage"]["prompt_tokens"]
        self.cached = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0


def posted(url: str, body: Json) -> Json:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        found: Json = json.load(response)
        return found


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
    """Return what LABELS names."""
    offered = tools(random)
    turns: list[Json] = [
        {"role": "system", "content": words(random, prompt_tokens // 6)},
        {"role": "user", "content": words(random, 40)},
    ]
    first = Timed(url, CHAT, {"messages": turns, "tools": offered})
    turns.append({"role": "assistant", "content": words(random, new_words // 4)})
    turns.append({"role": "user", "content": words(random, new_words)})
    random.shuffle(offered)
    second = Timed(url, CHAT, {"messages": turns, "tools": offered})
    ids = posted(f"{url}/tokenize", {"messages": turns, "tools": offered})["tokens"]
    new = [random.randrange(300, 2000) for _ in range(second.tokens - second.cached)]
    behind = Timed(url, TEXT, {"prompt": [*ids[: second.cached], *new]})
    return first, second, behind, Timed(url, TEXT, {"prompt": new[::-1]})


def processor() -> str:
    """Return the processor's name, as lscpu has it."""
    lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    names = [line for line in lines.splitlines() if line.startswith("Model name")]
    return names[0].partition(":")[2].strip() if names else platform.processor()


def main() -> None:
    """Print the medians of the rounds and their ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt-tokens", type=int, default=8000, help="about as many")
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
        with serving([*flags, *given.serve], Path(name) / "log") as (url, _, _):
            random = Random(0)
            measure(url, random, 200, given.new_words)
            rounds = []
            for _ in range(given.rounds):
                rounds.append(measure(url, random, given.prompt_tokens, given.new_words))
                print(", ".join(f"{one.seconds * 1e3:.0f} ms" for one in rounds[-1]), flush=True)
    report(rounds)


def report(rounds: list[tuple[Timed, ...]]) -> None:
    """Print the median of each column, and of the second turn's ratios to the last two."""
    print(f"{processor()}, {os.cpu_count()} cores, OMP_NUM_THREADS={os.getenv('OMP_NUM_THREADS')}")
    for label, column in zip(LABELS, zip(*rounds, strict=True), strict=True):
        seconds = statistics.median(one.seconds for one in column)
        tokens, cached = column[-1].tokens, column[-1].cached
        print(f"{label:40} {tokens:6} tokens, {cached:6} cached {seconds * 1e3:9.1f} ms")
    for number in (2, 3):
        ratios = sorted(row[1].seconds / row[number].seconds for row in rounds)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"second turn / {LABELS[number]}: {statistics.median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()
