"""Adapters added, dropped and evicted under 32 running requests, round after round.

PYTHONPATH=core:plugins:kernels:tests python -m support.adapter_churn [--rounds 1000]
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail import LLM
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.layers.adapters.linear import SlotWeights
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import adapters_of, engine_of
from support.written_lora import write_lora

RUNNING, SERVED, NUM_TOKENS = 32, 6, 8
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPT = [5, 9, 33, 8]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What rounds of churn left: answers by sort of adapter, requests that ended, and how much more
    resident memory and changes of layers there were at the end than after a quarter."""

    answers: list[tuple[int, ...]]
    num_done: int
    more_bytes: int
    more_kept: int


class Churn:
    """An engine, what it is asked, and what each sort of adapter is to answer."""

    def __init__(self, engine: Any, sorts: list[Path]) -> None:
        self.engine, self.sorts = engine, sorts
        self.adapters = adapters_of(engine.core)
        self.chance = random.Random(4)
        self.wanted: dict[int, list[int]] = {}
        self.running: dict[int, tuple[int, list[int]]] = {}
        self.served: dict[str, int] = {}
        self.num_done = 0

    def load(self, name: str, sort: int) -> Any:
        self.served[name] = sort
        return self.adapters.load(AdapterSource(name=name, path=str(self.sorts[sort])))

    def ask(self, name: str) -> None:
        key = self.engine.submit(self.engine.prepare(PROMPT, PARAMS, adapter=name))
        self.running[key] = (self.served[name], [])

    def step(self) -> None:
        step = self.engine.step()
        assert not step.errors, step.errors
        for key, output in step.outputs:
            sort, tokens = self.running[key]
            tokens += [token for delta in output.deltas for token in delta.token_ids]
            if output.is_finished:
                del self.running[key]
                assert tokens == self.wanted.setdefault(sort, tokens)
                self.num_done += 1

    def round(self, number: int) -> None:
        """Add an adapter, drop the oldest, and keep as many requests under way."""
        loading = self.load(f"n{number}", number % len(self.sorts))
        while not loading.done():
            self.engine.core.poll()
            self.step()
        loading.result()
        if len(self.served) > SERVED:
            oldest = next(iter(self.served))
            self.adapters.unload(oldest)
            del self.served[oldest]
        while len(self.running) < RUNNING:
            self.ask(self.chance.choice(list(self.served)))
        self.step()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def num_kept() -> int:
    gc.collect()
    return sum(isinstance(one, SlotWeights) for one in gc.get_objects())


def churned(scratch: Path, rounds: int) -> Found:
    """Return what so many rounds leave. Raises: AssertionError when an answer is not its adapter's,
    or blocks are lost"""
    folder = write_tiny_checkpoint(scratch / "base", "LlamaForCausalLM")
    sorts = [write_lora(scratch / f"sort{seed}", seed=seed) for seed in range(3)]
    flags = {"enable_lora": True, "max_loras": 3, "max_cpu_loras": 4, "dtype": "float32"}
    flags |= {"max_model_len": 32, "max_num_seqs": 32, "use_tqdm_on_load": False}
    with LLM(str(folder), **flags) as llm:
        churn = Churn(engine_of(llm), sorts)
        early, kept = 0, 0
        for number in range(rounds):
            churn.round(number)
            if number == rounds // 4:
                early, kept = resident_bytes(), num_kept()
        more_bytes, more_kept = resident_bytes() - early, num_kept() - kept
        while churn.running:
            churn.step()
        churn.engine.core.check_idle()
    answers = [tuple(churn.wanted[sort]) for sort in sorted(churn.wanted)]
    return Found(
        answers=answers, num_done=churn.num_done, more_bytes=more_bytes, more_kept=more_kept
    )


def main() -> None:
    """Print what is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = churned(Path(scratch), options.rounds)
    print(
        f"{options.rounds} rounds, {found.num_done} requests: {found.more_bytes / 1e6:+.1f} MB, "
        f"{found.more_kept:+d} layers' changes since a quarter"
    )


if __name__ == "__main__":
    main()
