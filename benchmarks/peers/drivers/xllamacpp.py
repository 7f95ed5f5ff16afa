"""llama.cpp's server engine, from the PyPI wheel `xllamacpp`, driven in this process.

The wheel is built for AVX2; drivers.llamacpp runs a build for the machine it is on.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import xllamacpp

from benchmarks.peers.drivers.trace import Setting, Trace, common_steps


def engine_of(
    model: str, num_slots: int, tokens_each: int, num_threads: int, port: int | None = None
) -> xllamacpp.Server:
    """Return llama.cpp's server without prompt caches; it listens where a port is given."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_parallel = num_slots
    params.n_ctx = num_slots * tokens_each
    params.cpuparams.n_threads = num_threads
    params.cpuparams_batch.n_threads = num_threads
    params.n_gpu_layers = 0
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.n_ctx_checkpoints = 0
    params.fit_params = False
    params.verbosity = 1
    params.ui = False
    if port is not None:
        params.hostnames = ["127.0.0.1"]
        params.port = port
    return xllamacpp.Server(params)


class Driver:
    """Holds one server, rebuilt when the number or the length of its slots changes."""

    def __init__(self, setting: Setting) -> None:
        """Load nothing yet."""
        self.setting = setting
        self.shape = (0, 0)
        self.server: Any = None

    def prepare(self, sequences: int, tokens_each: int) -> None:
        """Rebuild the server for these slots, each a multiple of 256 tokens long; warm it up."""
        shape = (sequences, -(-(tokens_each + 1) // 256) * 256)
        if shape != self.shape:
            self.server = None  # its memory goes before the next one is made
            self.server = engine_of(str(self.setting.model), *shape, self.setting.num_threads)
            self.shape = shape
            self.run([[5] * 32] * sequences, 3)

    def run(self, prompts: Sequence[list[int]], num_new: int) -> Trace:
        """Stream every prompt from a thread of its own."""
        arrivals: list[list[float]] = [[] for _ in prompts]
        counts = [0] * len(prompts)

        def stream(index: int) -> None:
            def event(answer: Any) -> bool:
                parsed = answer if isinstance(answer, dict) else json.loads(answer)
                if parsed.get("choices"):
                    arrivals[index].append(time.perf_counter())
                if parsed.get("usage"):
                    counts[index] = parsed["usage"]["completion_tokens"]
                return False

            self.server.handle_completions(_body(prompts[index], num_new), event)

        threads = [threading.Thread(target=stream, args=(i,)) for i in range(len(prompts))]
        start_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Trace(
            start_s=start_s,
            end_s=time.perf_counter(),
            ends_s=common_steps(arrivals, num_new),
            num_tokens=counts,
        )

    def facts(self) -> dict[str, str]:
        """Return the wheel's version and llama.cpp's own line about the machine."""
        return {"version": xllamacpp.__version__, "isa": str(xllamacpp.get_system_info())}


def _body(prompt: list[int], num_new: int) -> str:
    return json.dumps(
        {
            "prompt": prompt,
            "max_tokens": num_new,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
