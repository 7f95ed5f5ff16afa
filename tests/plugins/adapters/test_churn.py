"""Adapters added, dropped and evicted under 32 running requests, a thousand times."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

from dovetail import LLM
from dovetail.interfaces.adapter_spec import AdapterSource
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.layers.adapters import SlotWeights
from dovetail.testing.tiny_models import write_tiny_checkpoint
from support.written_lora import write_lora

ROUNDS, RUNNING, SERVED, NUM_TOKENS = 1000, 32, 6, 8
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPT = [5, 9, 33, 8]


class Churn:
    """An engine, what it is asked, and what each sort of adapter is to answer."""

    def __init__(self, engine: Any, sorts: list[Path]) -> None:
        self.engine, self.sorts = engine, sorts
        self.adapters = engine.core.adapters
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


def test_nothing_is_lost_and_memory_stays(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "base", "LlamaForCausalLM")
    sorts = [write_lora(tmp_path / f"sort{seed}", seed=seed) for seed in range(3)]
    flags = {"enable_lora": True, "max_loras": 3, "max_cpu_loras": 4, "dtype": "float32"}
    flags |= {"max_model_len": 32, "max_num_seqs": 32, "use_tqdm_on_load": False}
    with LLM(str(folder), **flags) as llm:
        churn = Churn(llm._engine, sorts)
        early, kept = 0, 0
        for number in range(ROUNDS):
            churn.round(number)
            if number == ROUNDS // 4:
                early, kept = resident_bytes(), num_kept()
        assert resident_bytes() - early < 12e6
        assert num_kept() <= kept + 40
        while churn.running:
            churn.step()
        churn.engine.core.check_idle()
    assert len(churn.wanted) == len(sorts) and len({tuple(t) for t in churn.wanted.values()}) == 3
    assert churn.num_done > ROUNDS
