"""Measurements at a runner's start: the memory of the largest step, the scales of the KV cache.

Both run artificial steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import CachedLayer, KVLayout, StepPlan, StepResult
from dovetail.layers.attention.kv_scales import set_scales, tell_measured
from dovetail.layers.attention.paged import Attention, measuring
from dovetail.runner.kv.allocation import small_layout
from dovetail.runner.replay import warm_up
from dovetail.runner.replay.compiled import CompiledForward
from dovetail.runner.replay.graphs import GraphManager

MEASURED_TOKENS = 256
"""Random tokens to measure the scales of the KV cache with, if they are not given."""
GRAPH_BYTES = 8 << 20
"""The driver's memory per captured step, besides the shared pool."""

PeakOf = Callable[[Callable[[], object]], int]
"""Runs a function and returns its peak memory in bytes."""


def largest_step(
    layers: Sequence[CachedLayer],
    backend: AttentionBackend,
    run: RunSpec,
    draft: Callable[[int], KVLayout | None],
) -> tuple[KVLayout, StepPlan]:
    """Return a step with the maximum rows and tokens, and the smallest cache for it. `draft`
    returns the layout of a drafter's layers for a number of blocks."""
    longest = min(run.max_model_tokens, run.max_step_tokens + 1)
    num_blocks = 1 + -(-longest // run.block_tokens)
    layout = small_layout(
        layers,
        backend,
        block_tokens=run.block_tokens,
        num_blocks=num_blocks,
        draft=draft(num_blocks),
    )
    max_tokens = (num_blocks - 1) * run.block_tokens
    max_tokens = min(max((group.cross_rows for group in layout.groups), default=0), max_tokens)
    plan = warm_up.largest_plan(
        layout,
        read=warm_up.read_by_encoder(layout, run.model.hidden_size, max_tokens),
        max_rows=run.max_rows,
        max_step_tokens=run.max_step_tokens,
        max_model_tokens=run.max_model_tokens,
    )
    return layout, plan


def peak_bytes(
    step: Callable[[], object],
    compiled: CompiledForward | None,
    graphs: GraphManager | None,
    peak_of: PeakOf,
) -> int:
    """Return the peak memory of a step, run in whichever way takes the most, plus the memory of
    captured graphs. Mutates: compiled, graphs"""
    step()  # first creates what is cached, so that it is not measured
    peak = peak_of(step)
    if compiled is not None and compiled.compile(step):
        peak = max(peak, peak_of(lambda: compiled.compile(step)))
    if graphs is not None and graphs.reason is None:
        graphs.run_largest()
        peak += peak_of(graphs.run_largest)
        peak += GRAPH_BYTES * graphs.num_wanted
    return peak


def set_given_scales(attention: Sequence[Attention], run: RunSpec) -> None:
    """Set a run's given KV-cache scales, unless they are to be measured. Mutates: attention"""
    if run.kv_steps is not None:
        return
    given, rank = run.kv_scales, run.rank
    layers = rank.layers(run.model.num_layers)
    own = [given[rank.tensor_rank][i] for i in layers] if given else ()
    set_scales(attention, run.kv_dtype, own)


def decide_scales(
    attention: Sequence[Attention],
    kv_steps: tuple[float, float],
    step: Callable[[StepPlan], StepResult],
    layout: KVLayout,
    run: RunSpec,
) -> None:
    """Measure the KV cache's scales with a prompt of random tokens, the same at every start.

    Mutates: the attention layers
    """
    count = min(MEASURED_TOKENS, warm_up.most_tokens(layout, run))
    draw = torch.Generator().manual_seed(run.seed)
    token_ids = torch.randint(run.model.vocab_size, (count,), generator=draw).tolist()
    with measuring(attention, kv_steps):
        read = warm_up.read_by_encoder(layout, run.model.hidden_size)
        step(warm_up.warm_up_prompt(layout, tuple(token_ids), read))
    step(warm_up.emptied(1))
    tell_measured(attention)
