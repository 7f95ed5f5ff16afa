"""Random faults of the cache of packed weights: does any start answer with a wrong token?

    python -m benchmarks.cache_faults [--rounds 1000] [--seed 1] [--json FILE]

Two tiny random checkpoints of one shape. The rounds damage the cache in six ways, in turn:

- killed: a process that starts is killed in the middle of a random write to its entry,
- renamed: the same, and the unfinished file has the entry's name (a disk that lost writes),
- torn: the entry is cut or longer, or has a wrong bit, pages of zeros, or pages swapped,
- stale: the checkpoint gets other weights of the same sizes, and the entry is there still,
- key: the other checkpoint's entry has this one's name,
- rival: two processes write the entry at once, and one is killed.

The model then starts twice and continues a prompt by 8 tokens. Each start has to give the tokens
and the logits, bit by bit, that it gives without the cache. A round also counts whether the first
start refused an entry, and the second one mapped what the first had written.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.runner.load.loader import load_model
from dovetail_plugins.packed_weights import loading
from dovetail_plugins.packed_weights.folder import UNFINISHED, cache_folder
from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.models import write_tiny_checkpoint

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
PROMPT = [3, 9, 27, 14, 5]
NUM_NEW = 8
PAGE = 4096
WEIGHTS = "model.safetensors"
Found = tuple[list[int], torch.Tensor]
"""Tokens, and the logits before each."""


def start(run: Any) -> Found:
    """Load the model as an engine does, and continue the prompt."""
    model = PagedModel(load_model(run, torch.device("cpu")).module)
    for thread in threading.enumerate():
        if thread.name == "weight-cache":
            thread.join()
    tokens, logits, step = [], [], PROMPT
    for _ in range(NUM_NEW):
        (found,) = model.forward([(0, step)])
        logits.append(found[-1])
        step = [int(found[-1].argmax())]
        tokens += step
    return tokens, torch.stack(logits)


class Refusals(logging.Handler):
    """Counts entries that a start refused, and those that it mapped."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.refused = self.mapped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a message of the cache."""
        self.refused += "are not used" in record.msg
        self.mapped += record.msg.startswith("mapped")


class Bench:
    """Two checkpoints, what they answer without a cache, and one's entry."""

    def __init__(self, root: Path, seed: int) -> None:
        self.choice = random.Random(seed)
        self.root, self.weights = root, [root / "0.weights", root / "1.weights"]
        self.folder = root / "model"
        write_tiny_checkpoint(self.folder, "LlamaForCausalLM", **SIZES)
        tensors = load_file(self.folder / WEIGHTS)
        others = {name: one.flip(0).contiguous() for name, one in tensors.items()}
        for file, state in zip(self.weights, (tensors, others), strict=True):
            save_file(state, file, metadata={"format": "pt"})
        self.run = self._run()
        self.right = [self._without_cache(number) for number in (0, 1)]
        assert self.right[0][0] != self.right[1][0], "both models say the same"
        self.put(0)

    def _run(self, **fields: Any) -> Any:
        fields = {"load_format": "auto", "quantization": "int4", **fields}
        return resolve(Config.from_fields({"model": str(self.folder), **fields})).run

    def _without_cache(self, number: int) -> Found:
        self.put(number)
        return start(self._run(weight_cache=False))

    def put(self, number: int) -> None:
        """Give the model one of the two checkpoints' weights. Mutates: self"""
        shutil.copyfile(self.weights[number], self.folder / WEIGHTS)
        self.number = number

    @property
    def entry(self) -> Path:
        """Return the entry's file, as a start finds it."""
        path = loading._path_of(self.run)
        assert path is not None, "this machine has no native library"
        return path

    def fresh(self) -> bytes:
        """Return the bytes of a whole entry; it is the only one."""
        shutil.rmtree(cache_folder(), ignore_errors=True)
        start(self.run)
        return self.entry.read_bytes()

    def is_right(self) -> bool:
        """Start; return whether the answer is that of the weights that are there."""
        tokens, logits = start(self.run)
        right = self.right[self.number]
        return tokens == right[0] and torch.equal(logits, right[1])


def in_child(work: Callable[[], Any]) -> int:
    """Run a function in a forked process; return its process id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)


def killed_at(bench: Bench, place: int) -> Callable[[], Any]:
    """Return a start that ends at a write to its entry, which is done in part."""
    share, own, left = bench.choice.random(), os.pwrite, [place]

    def write(descriptor: int, data: Any, offset: int) -> int:
        if left[0] == 0:
            own(descriptor, memoryview(data)[: int(share * len(data))], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return own(descriptor, data, offset)

    def work() -> None:
        os.pwrite = write
        start(bench.run)

    return work


def killed(bench: Bench) -> None:
    """A start is killed while it writes."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
    os.waitpid(in_child(killed_at(bench, bench.choice.randrange(40))), 0)


def renamed(bench: Bench) -> None:
    """What a killed start has written has the name of a whole entry."""
    killed(bench)
    for file in cache_folder().glob(f"*{UNFINISHED}"):
        file.rename(bench.entry)


def torn(bench: Bench) -> None:
    """The entry's bytes are not those that were written."""
    content = bytearray(bench.fresh())
    place = bench.choice.randrange(len(content))
    page = slice(place // PAGE * PAGE, place // PAGE * PAGE + PAGE)
    match bench.choice.randrange(5):
        case 0:
            del content[place:]
        case 1:
            content += content[:place]
        case 2:
            content[place] ^= 1 << bench.choice.randrange(8)
        case 3:
            content[page] = bytes(len(content[page]))
        case _:
            content = content[page] + content[: page.start] + content[page.stop :]
    bench.entry.write_bytes(content)


def stale(bench: Bench) -> None:
    """The checkpoint has other weights than the entry."""
    content, name = bench.fresh(), bench.entry.name
    bench.put(1 - bench.number)
    (cache_folder() / name).write_bytes(content)


def key(bench: Bench) -> None:
    """The other checkpoint's entry has this one's name."""
    bench.put(1 - bench.number)
    content = bench.fresh()
    bench.put(1 - bench.number)
    bench.entry.write_bytes(content)


def rival(bench: Bench) -> None:
    """Two starts write at once; one is killed."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
    work = killed_at(bench, bench.choice.randrange(40))
    children = [in_child(work), in_child(lambda: start(bench.run))]
    for child in children:
        os.waitpid(child, 0)


FAULTS = (killed, renamed, torn, stale, key, rival)


@contextmanager
def cache_in(root: Path) -> Iterator[Refusals]:
    """Have the cache in a folder, for small models too, and count what it says."""
    before, least = os.environ.get("XDG_CACHE_HOME"), loading.LEAST_BYTES
    os.environ["XDG_CACHE_HOME"], loading.LEAST_BYTES = str(root / "cache"), 0
    counts, level = Refusals(), loading.log.level
    loading.log.addHandler(counts)
    loading.log.setLevel(logging.INFO)
    try:
        yield counts
    finally:
        loading.log.removeHandler(counts)
        loading.log.setLevel(level)
        loading.LEAST_BYTES = least
        os.environ.pop("XDG_CACHE_HOME")
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def measured(rounds: int, seed: int) -> dict[str, dict[str, int]]:
    """Return the counts of each fault: rounds, refused entries, mapped ones, wrong starts."""
    torch.set_num_threads(1)
    found: dict[str, Counter[str]] = {one.__name__: Counter() for one in FAULTS}
    with tempfile.TemporaryDirectory() as name, cache_in(Path(name)) as counts:
        bench = Bench(Path(name), seed)
        for number in range(rounds):
            fault = FAULTS[number % len(FAULTS)]
            of = found[fault.__name__]
            fault(bench)
            counts.refused = counts.mapped = 0
            of["wrong"] += not bench.is_right()
            of["refused"] += counts.refused
            counts.mapped = 0
            of["wrong"] += not bench.is_right()
            of["mapped"] += counts.mapped
            of["rounds"] += 1
    return {name: dict(one) for name, one in found.items()}


def main() -> int:
    """Print the counts; the exit status is 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = measured(asked.rounds, asked.seed)
    columns = ("rounds", "refused", "mapped", "wrong")
    print("| fault | rounds | entries refused | second starts that map | wrong starts |")
    print("|---|---|---|---|---|")
    for name, counts in found.items():
        print(f"| {name} | " + " | ".join(str(counts.get(one, 0)) for one in columns) + " |")
    if asked.json is not None:
        asked.json.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return int(any(counts.get("wrong") for counts in found.values()))


if __name__ == "__main__":
    sys.exit(main())
