"""dovetail through its LLM class, with the flags of `dovetail serve`.

Prefix caching is off and the sizes suit the protocol, unless the given flags say otherwise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch

import dovetail
from benchmarks.peers.drivers.trace import Setting, Trace
from dovetail import LLM
from dovetail.config.parse.flags import add_flags, config_of
from dovetail.config.resolve import resolve

FLAGS = [
    "--no-enable-prefix-caching",
    *("--max-model-len", "2048"),
    *("--max-num-seqs", "32"),
    *("--max-num-batched-tokens", "1024"),
    *("--kv-cache-memory-bytes", str(1 << 30)),
]


class TimedLLM(LLM):
    """An LLM that notes when each of its steps ended."""

    ends_s: list[float]

    def _step(self, gatherers: Any, progress: Any) -> set[int]:
        ended = super()._step(gatherers, progress)
        self.ends_s.append(time.perf_counter())
        return ended


class Driver:
    """One LLM."""

    def __init__(self, setting: Setting) -> None:
        """Load. `options`: flags, a list as on the command line."""
        torch.set_num_threads(setting.num_threads)
        parser = argparse.ArgumentParser()
        add_flags(parser)
        self.flags = [*FLAGS, *setting.options.get("flags", [])]
        config = config_of(parser.parse_args(self.flags), model=str(setting.model))
        self.llm = TimedLLM.from_spec(resolve(config))

    def prepare(self, sequences: int, tokens_each: int) -> None:
        """Warm up on a small batch; nothing depends on the shape."""
        self.run([[5] * min(tokens_each, 32)] * sequences, 3)

    def run(self, prompts: Sequence[list[int]], num_new: int) -> Trace:
        """Generate; the last `num_new` - 1 steps are those in which all prompts decode."""
        params = self.llm.default_params(temperature=0.0, max_tokens=num_new, ignore_eos=True)
        self.llm.ends_s = []
        start_s = time.perf_counter()
        results = self.llm.generate(list(prompts), params, use_tqdm=False)
        end_s = time.perf_counter()
        faults = [result.error for result in results if result.error]
        if faults:
            raise SystemExit(f"dovetail ended a request: {faults[0]}")
        return Trace(
            start_s=start_s,
            end_s=end_s,
            ends_s=self.llm.ends_s[-num_new:],
            num_tokens=[len(result.outputs[0].token_ids) for result in results],
        )

    def facts(self) -> dict[str, str]:
        """Return versions, torch's instruction set and the flags."""
        return {
            "version": f"{dovetail.__version__}, torch {torch.__version__}",
            "isa": torch.backends.cpu.get_cpu_capability(),
            "flags": " ".join(self.flags),
        }
