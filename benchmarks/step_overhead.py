"""Time of a decode step outside the model's own forward, per number of rows.

A model whose forward and logits cost next to nothing runs through worker, runner and sampler (and
optionally a one-layer attention backend); what is left is dovetail's own overhead. Bar for
everything: 0.3 ms + 10 us a row per step; half of that is the aim for runner and sampler, greedy.

    PYTHONPATH=core:plugins:kernels python benchmarks/step_overhead.py [--vocab 2048]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention import Attention
from dovetail.runner.model_runner import ModelRunner
from dovetail_testing.scripted_steps import Driver, DriveRequest
from dovetail_testing.tiny.transformer import tiny_layout, tiny_run

BAR_S, BAR_ROW_S = 300e-6, 10e-6
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy, logprobs 5": SamplingParams(temperature=0.0, logprobs=5),
    "random": SamplingParams(temperature=0.7),
    "random, top-k top-p": SamplingParams(temperature=0.7, top_k=20, top_p=0.95),
    "random, top-p": SamplingParams(temperature=0.7, top_p=0.95),
    "random, min-p": SamplingParams(temperature=0.7, min_p=0.05),
    "random, penalties": SamplingParams(temperature=0.7, presence_penalty=0.5),
    "greedy, repetition": SamplingParams(temperature=0.0, repetition_penalty=1.1),
    "all of it": SamplingParams(
        temperature=0.7,
        top_k=20,
        top_p=0.95,
        min_p=0.02,
        presence_penalty=0.5,
        repetition_penalty=1.1,
        logprobs=5,
    ),
}
SDPA = Selection(
    kind="attention_backend",
    name="torch_sdpa",
    target="dovetail_plugins.attention.torch_sdpa:TorchSdpa",
)


class IdleModel(nn.Module, Model):
    """Touches no weight: its forward and logits return tensors made beforehand."""

    info = Info(summary="benchmark model: costs nothing")
    capabilities = frozenset({"no_weights"})

    def __init__(self, options: Any, context: BuildContext) -> None:
        nn.Module.__init__(self)
        spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_size=8, scale=1.0)
        self.attention = Attention("only", spec)
        self.ready = torch.randn(64, context.model.vocab_size)

    def weight_map(self) -> WeightMap:
        """Return an empty map."""
        return WeightMap()

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return something of the right length."""
        return token_ids.unsqueeze(1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return a copy, since sampling changes it."""
        return self.ready[: len(hidden)].clone()


def plans_of(runner: ModelRunner, rows: int, steps: int, params: SamplingParams) -> list[StepPlan]:
    """Return a prefill and then decode steps of `rows` requests."""
    asks = [
        DriveRequest(request_id=str(r), prompt_ids=(1,) * 100, num_tokens=steps, sampling=params)
        for r in range(rows)
    ]
    layout = tiny_layout(list(runner.kv_layers()), num_blocks=4096, block_tokens=16)
    return list(Driver(layout, max_rows=64).plans(asks))


def build(vocab: int) -> ModelRunner:
    """Return a runner around the idle model."""
    run = tiny_run(
        model=f"{__name__}:IdleModel" if __name__ != "__main__" else "step_overhead:IdleModel",
        attention=SDPA,
        max_rows=64,
        max_model_tokens=1024,
        block_tokens=16,
        vocab_size=vocab,
    )
    runner = ModelRunner(run, torch.device("cpu"))
    runner.load()
    runner.allocate(tiny_layout(list(runner.kv_layers()), num_blocks=4096, block_tokens=16))
    runner.warm_up()
    return runner


def step_times(runner: ModelRunner, plans: Sequence[StepPlan]) -> list[float]:
    """Return the seconds of each decode step."""
    times = []
    for plan in plans:
        start_s = time.perf_counter()
        runner.step(plan)
        times.append(time.perf_counter() - start_s)
    return times[5:-1]


def main() -> None:
    """Print the median and the 90th percentile for each way of sampling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--profile", action="store_true", help="show where greedy time goes")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    runner = build(chosen.vocab)
    print(
        f"vocabulary {chosen.vocab}; microseconds per step: median, 90th percentile, share of bar"
    )
    for name, params in WAYS.items():
        for rows in chosen.rows:
            plans = plans_of(runner, rows, chosen.steps, params)
            times = step_times(runner, plans)
            median, high = statistics.median(times), statistics.quantiles(times, n=10)[-1]
            share = median / (BAR_S + BAR_ROW_S * rows)
            print(f"{name:<22}{rows:>4} rows{median * 1e6:>9.0f}{high * 1e6:>9.0f}{share:>8.0%}")
    if chosen.profile:
        plans = plans_of(runner, chosen.rows[-1], chosen.steps, WAYS["greedy"])
        profile = cProfile.Profile()
        profile.runcall(step_times, runner, plans)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
