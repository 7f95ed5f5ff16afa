"""OpenVINO GenAI's continuous batching pipeline on the CPU plugin."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import openvino
import openvino_genai
from openvino import properties

from benchmarks.peers.drivers.trace import Setting, Trace, common_steps


class Driver:
    """One pipeline, stepped by hand so that every step can be timed."""

    def __init__(self, setting: Setting) -> None:
        """Load and compile. `options`: CPU plugin properties."""
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2  # GiB
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        self.told = {"INFERENCE_NUM_THREADS": setting.num_threads, **setting.options}
        self.model = str(setting.model)
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            self.model, scheduler, "CPU", self.told
        )
        self.serial = 0

    def prepare(self, sequences: int, tokens_each: int) -> None:
        """Run the shape once: kernels are compiled for the shapes that come."""
        self.run([[5] * min(tokens_each, 256)] * sequences, 3)

    def run(self, prompts: Sequence[list[int]], num_new: int) -> Trace:
        """Add all requests, then step until none is left."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = num_new
        config.ignore_eos = True
        config.do_sample = False
        start_s = time.perf_counter()
        handles = []
        for prompt in prompts:
            self.serial += 1
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self.pipeline.add_request(self.serial, ids, config))
        arrivals: list[list[float]] = [[] for _ in prompts]
        counts = [0] * len(prompts)
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            now_s = time.perf_counter()
            for index, handle in enumerate(handles):
                if handle.can_read():
                    counts[index] += sum(len(o.generated_ids) for o in handle.read().values())
                    arrivals[index].append(now_s)
        return Trace(
            start_s=start_s,
            end_s=time.perf_counter(),
            ends_s=common_steps(arrivals, num_new),
            num_tokens=counts,
        )

    def facts(self) -> dict[str, str]:
        """Return the version, what the CPU plugin can do and what it would pick by default."""
        core = openvino.Core()
        able = core.get_property("CPU", properties.device.capabilities)
        default = core.get_property("CPU", properties.hint.inference_precision)
        return {
            "version": openvino_genai.__version__,
            "isa": f"JIT; device capabilities {able}; default precision {default}",
            "options": str(self.told),
        }
