"""transformers' generate on a static batch of equal lengths."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from benchmarks.peers.drivers.trace import Setting, Trace


class _Marks(transformers.StoppingCriteria):
    """Notes when each step ended; stops nothing."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.ends_s.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Driver:
    """One model under generate."""

    def __init__(self, setting: Setting) -> None:
        """Load. `options`: dtype."""
        torch.set_num_threads(setting.num_threads)
        self.dtype = setting.options.get("dtype", "float32")
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            setting.model, dtype=getattr(torch, self.dtype)
        ).eval()

    def prepare(self, sequences: int, tokens_each: int) -> None:
        """Warm up on a small batch; nothing depends on the shape."""
        self.run([[5] * min(tokens_each, 32)] * sequences, 3)

    def run(self, prompts: Sequence[list[int]], num_new: int) -> Trace:
        """Generate the batch."""
        marks = _Marks()
        ids = torch.tensor(list(prompts))
        start_s = time.perf_counter()
        with torch.inference_mode():
            made = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_new,
                min_new_tokens=num_new,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=transformers.StoppingCriteriaList([marks]),
            )
        return Trace(
            start_s=start_s,
            end_s=time.perf_counter(),
            ends_s=marks.ends_s,
            num_tokens=[made.shape[1] - ids.shape[1]] * len(ids),
        )

    def facts(self) -> dict[str, str]:
        """Return versions and torch's instruction set."""
        return {
            "version": f"{transformers.__version__}, torch {torch.__version__}",
            "isa": torch.backends.cpu.get_cpu_capability(),
            "dtype": self.dtype,
        }
