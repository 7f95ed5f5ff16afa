"""Timing passes: forward passes of any number of tokens that do not touch any request's cache.

They read and write only the null block. Pure functions, independent of models and requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.runner.replay.compiled import CompiledForward
from dovetail.runner.replay.graphs import GraphManager
from dovetail.runner.replay.recorded import RecordedForward
from dovetail.runner.rows.block_table import BlockTable
from dovetail.runner.rows.tensors import Forward

FEW_TOKENS = (1, 8, 64)
"""Sizes that are timed below the largest step that may be captured."""
PROMPT_TOKENS, CPU_PROMPT_TOKENS = 2048, 256
"""Prompt lengths to time: on a CPU, thousands of tokens would take seconds."""


@torch.inference_mode()
def choose_forward(
    compiled: CompiledForward,
    run: RunSpec,
    captured: tuple[RecordedForward | None, GraphManager | None],
    forward: Forward,
    tables: Sequence[BlockTable],
    device: torch.device,
) -> None:
    """Find out at which sizes a compiled pass is faster than `forward`. Mutates: compiled"""
    rows, most_captured = rows_run_again(run, *captured)
    max_tokens = min(run.max_step_tokens, run.max_model_tokens)
    passes = timing_passes(forward, tables, device, most_rows=rows, most_tokens=max_tokens)
    compiled.choose(passes, most_captured)


def rows_run_again(
    run: RunSpec, recorded: RecordedForward | None, graphs: GraphManager | None
) -> tuple[int, int]:
    """Return the maximum rows of steps that need timing and of steps that are captured as graphs.
    Recorded steps need no timing."""
    if recorded is not None and recorded.reason is None:
        return 0, 0
    if graphs is not None and graphs.reason is None:
        max_rows = max(run.graph_sizes or (1,))
        return max_rows, max_rows
    return run.max_rows, 0


def timing_passes(
    forward: Forward,
    tables: Sequence[BlockTable],
    device: torch.device,
    *,
    most_rows: int,
    most_tokens: int,
) -> dict[int, Callable[[], torch.Tensor]]:
    """Return passes by number of tokens: up to `most_rows` rows of one token (0: none), and one
    prompt of a single row. They write to the null block."""
    sizes = [size for size in FEW_TOKENS if size < most_rows] + [most_rows] * bool(most_rows)
    passes = {size: _pass(forward, tables, device, [1] * size) for size in sizes}
    prompt = min(most_tokens, CPU_PROMPT_TOKENS if device.type == "cpu" else PROMPT_TOKENS)
    if prompt > most_rows:
        passes[prompt] = _pass(forward, tables, device, [prompt])
    return passes


def _pass(
    forward: Forward, tables: Sequence[BlockTable], device: torch.device, counts: list[int]
) -> Callable[[], torch.Tensor]:
    """Return a pass over rows with these numbers of tokens, all in the null block."""
    num_tokens, max_tokens = sum(counts), max(counts)
    starts = torch.tensor([0, *counts]).cumsum(0)
    token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    positions = torch.cat([torch.arange(count) for count in counts]).to(device)
    layouts = [
        BatchLayout(
            query_start=starts.to(device, torch.int32),
            seq_lens=torch.tensor(counts, dtype=torch.int32, device=device),
            block_table=torch.zeros(
                len(counts), -(-max_tokens // table.block_tokens), dtype=torch.int32, device=device
            ),
            slots=token_ids.clone(),
            query_start_host=starts.tolist(),
            seq_lens_host=counts,
            block_tokens=table.block_tokens,
            max_query_tokens=max_tokens,
            max_seq_tokens=max_tokens,
        )
        for table in tables
    ]
    return lambda: forward(token_ids, positions, layouts)
