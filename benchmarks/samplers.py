"""What samplers cost: processor time of a draw with each, and how many times what it takes without.

    PYTHONPATH=core:plugins:kernels python benchmarks/samplers.py [--words 152000] [--rounds 9]

Each line is a request's fields. Without them, a draw is one native call, whatever processors are
loaded; "in torch" is what the same draw takes as torch operations, which every sampler after the
penalties needs. The rounds of all lines are interleaved; medians count, with one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dovetail import registry
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import NoOptions
from dovetail.sampling.sampler import Sampler

KIND = "logits_processor"
PLAIN: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
LINES: Sequence[dict[str, Any]] = (
    {},
    {"dry_multiplier": 0.8, "dry_sequence_breakers": []},
    {"xtc_probability": 0.5},
    {"mirostat": 2},
    {"mirostat": 1},
    {"adaptive_target": 0.3},
    {"typical_p": 0.9},
    {"tfs_z": 0.95},
    {"top_a": 0.2},
    {"epsilon_cutoff": 3},
    {"eta_cutoff": 3},
    {"top_n_sigma": 1},
    {"dynatemp_range": 0.5},
    {"smoothing_factor": 0.3},
    {"no_repeat_ngram_size": 3},
    {"encoder_repetition_penalty": 1.2},
    {"repeat_last_n": 64},
    {"samplers": "edskypmxt"},
    {"min_keep": 3},
)


def main() -> None:
    """Print a line for each request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=152_000)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for count in (1, 32):
        logits = 3 * torch.randn(count, chosen.words, generator=torch.Generator().manual_seed(0))
        draws = {"in torch": Draw({}, logits, uses_kernels=False)}
        draws |= {", ".join(extra) or "none": Draw(extra, logits) for extra in LINES}
        draws["xtc_probability, in one row"] = Draw({"xtc_probability": 0.5}, logits, num_rows=1)
        times: dict[str, list[float]] = {name: [] for name in draws}
        for _ in range(chosen.rounds):
            for name, draw in draws.items():
                times[name].append(draw.ms())
        medians = {name: statistics.median(one) for name, one in times.items()}
        print(f"{f'{count} rows':44}{'ms':>9}{'/ none':>9}{'/ torch':>9}")
        for name, ms in medians.items():
            ratios = f"{ms / medians['none']:9.1f}{ms / medians['in torch']:9.2f}"
            print(f"{name[:43]:44}{ms:9.2f}{ratios}")


class Draw:
    """A sampler whose first `num_rows` rows (None: all) have the fields, after a prompt of 1,000
    tokens."""

    def __init__(
        self,
        extra: dict[str, Any],
        logits: torch.Tensor,
        *,
        uses_kernels: bool = True,
        num_rows: int | None = None,
    ) -> None:
        self._logits, self._count = logits, len(logits)
        classes: dict[str, type[LogitsProcessor]] = {
            name: registry.load(KIND, name) for name in registry.names(KIND)
        }
        plain = SamplingParams(**PLAIN, repetition_penalty=1.1)
        params = SamplingParams(**PLAIN, repetition_penalty=1.1, extra_args=extra)
        for cls in classes.values():
            if cls.wants(params):
                params = cls.prepared(params, None)  # type: ignore[arg-type]
        made = {name: cls(NoOptions(), logits.shape[1]) for name, cls in classes.items()}
        self._sampler = Sampler(self._count, made, uses_kernels=uses_kernels)
        self._outputs: list[list[int]] = [[] for _ in range(self._count)]
        for row, output in enumerate(self._outputs):
            ids = np.random.default_rng(row).integers(0, 500, size=1000).tolist()
            own = params if num_rows is None or row < num_rows else plain
            tokens = RowTokens(row=row, params=own, prompt_ids=ids, output_ids=output, seed=row)
            self._sampler.add_row(tokens, seed=row)

    def ms(self) -> float:
        """Return the processor time of one draw of all rows, in milliseconds."""
        positions = np.full(self._count, len(self._outputs[0]))
        logits = self._logits.clone()
        begun_s = time.process_time()
        draws = self._sampler.sample(logits, np.arange(self._count), positions, logits.clone)
        spent_s = time.process_time() - begun_s
        assert not draws.faults, draws.faults
        for output, token_id in zip(self._outputs, draws.token_ids, strict=True):
            output.append(token_id)
        return 1e3 * spent_s


if __name__ == "__main__":
    main()
