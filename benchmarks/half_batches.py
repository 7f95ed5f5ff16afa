"""Steps in two half batches (--enable-dbo) against whole ones, on two tensor-parallel ranks.

Both engines are alike but for the flag and run in turn. `delay` adds a time to every sum by its
size, as a narrow network would: how much there must be to hide for halves to be worth it. (Two half
batches make twice as many exchanges, one after the other: a delay of each would not be hidden.)
`real` compares with the communicators as they are. Decode steps are told by the difference between
long and short answers; prefill steps by short answers to prompts that nobody has asked before.
Beside the time that passes, that of the ranks' processors, which a busy machine changes less.

    PYTHONPATH=core:plugins:kernels python benchmarks/half_batches.py [delay | real]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import torch

from dovetail import LLM, SamplingParams
from dovetail.interfaces.communicator import Membership
from dovetail_plugins.communicators.gloo import GlooCommunicator

NEW_TOKENS = 12
PROMPT_TOKENS = 512
SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 8000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
    "bos_token_id": 0,
}
HALVES = {
    "enable_dbo": True,
    "dbo_decode_token_threshold": 16,
    "dbo_prefill_token_threshold": 64,
}
_seeds = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayOptions:
    """Options of DelayedGloo."""

    ms_per_mib: float = field(default=0.0, metadata={"help": "time added to a sum, by its size"})


class DelayedGloo(GlooCommunicator):
    """gloo over a narrow network: sums take longer the larger they are."""

    Options = DelayOptions

    def __init__(self, options: DelayOptions, member: Membership) -> None:
        self._s_per_byte = options.ms_per_mib / 1e3 / (1 << 20)
        super().__init__(options, member)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' x. Mutates: x"""
        time.sleep(self._s_per_byte * x.nbytes)
        return super().all_reduce(x)


class Engine:
    """An engine of two ranks with a thread each, and how long and how much they work."""

    def __init__(self, folder: str, communicator: str, *, is_divided: bool, **flags: Any) -> None:
        before = set(psutil.Process().children(recursive=True))
        usual: dict[str, Any] = {
            "model": folder,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "tensor_parallel_size": 2,
            "num_threads": 1,
            "kv_cache_memory_bytes": 64 << 20,
            "max_model_len": 1024,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 1024,
            "use_tqdm_on_load": False,
            "disable_log_stats": True,
            "communicator": communicator,
        }
        self._llm = LLM(**(usual | flags | (HALVES if is_divided else {})))
        self._ranks = set(psutil.Process().children(recursive=True)) - before

    def close(self) -> None:
        """End the ranks."""
        self._llm.__exit__(None, None, None)

    def answer(self, rows: int, prompt: int, new: int, seed: int) -> Times:
        """Return what some answers take."""
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        prompts = [
            [7 + (11 * row + 3 * place + 101 * seed) % 7900 for place in range(prompt)]
            for row in range(rows)
        ]
        started = self._now()
        self._llm.generate(prompts, params, use_tqdm=False)
        return self._now() - started

    def decode(self, rows: int) -> Times:
        """Return what decode steps take: what more tokens do than one."""
        short, long = (self.answer(rows, 16, new, 0) for new in (1, 1 + NEW_TOKENS))
        return long - short

    def _now(self) -> Times:
        busy = (rank.cpu_times() for rank in self._ranks)
        return Times(
            passed_s=time.perf_counter(), busy_s=sum(one.user + one.system for one in busy)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds that pass, and that the ranks' processors are busy."""

    passed_s: float
    busy_s: float

    def __sub__(self, other: Times) -> Times:
        return Times(passed_s=self.passed_s - other.passed_s, busy_s=self.busy_s - other.busy_s)


def compare(folder: str, name: str, communicator: str, rounds: int, **flags: Any) -> None:
    """Print the time of whole steps with a communicator, and that of divided ones over it."""
    whole, divided = (
        Engine(folder, communicator, is_divided=is_divided, **flags) for is_divided in (False, True)
    )
    try:
        for what in ("decode of 32 rows", "decode of 64 rows", f"prompt of {PROMPT_TOKENS} tokens"):
            pairs = []
            for _ in range(rounds + 1):
                seed = next(_seeds)
                pairs.append(
                    [
                        one.answer(1, PROMPT_TOKENS, 1, seed)  # of which nothing is cached
                        if what.startswith("prompt")
                        else one.decode(int(what.split()[2]))
                        for one in (whole, divided)
                    ]
                )
            del pairs[0]  # the first round warms up
            steps = 1 if what.startswith("prompt") else NEW_TOKENS
            taken_s = statistics.median(one.passed_s for one, _ in pairs) / steps
            passed = [halves.passed_s / one.passed_s for one, halves in pairs]
            busy = sum(halves.busy_s for _, halves in pairs) / sum(one.busy_s for one, _ in pairs)
            print(
                f"{name}, {what}: whole {taken_s * 1e3:.1f} ms, divided / whole "
                f"{statistics.median(passed):.2f} ({min(passed):.2f} to {max(passed):.2f}), "
                f"processor time {busy:.2f}",
                flush=True,
            )
    finally:
        whole.close()
        divided.close()


def main() -> None:
    """Measure what was named, or everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["delay", "real"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms-per-mib", type=float, nargs="+", default=[0.0, 10.0, 40.0, 160.0])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
        for ms_per_mib in args.ms_per_mib if args.what in (None, "delay") else ():
            options = {"communicator": {"ms_per_mib": ms_per_mib}}
            delayed = f"{__file__}:{DelayedGloo.__name__}"
            name = f"{ms_per_mib:g} ms more for each MiB"
            compare(folder, name, delayed, args.rounds, plugin_options=options)
        for communicator in ("gloo", "shared_memory") if args.what in (None, "real") else ():
            compare(folder, communicator, communicator, args.rounds)


if __name__ == "__main__":
    main()
