"""GraphManager: captures steps in which every row computes one token, by size, and replays them.

A captured step reads its inputs at fixed device addresses, so a step of 13 rows runs the graph for
16: padding rows have one token of the null block, and their results are ignored. Graphs also differ
in the maximum context, which determines attention's launches, and in whether rows use adapters:
each row's slot is one more input, and slots are read in place.
Independent of requests and sampling; the device provides the capture (`runner.device`).
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from dovetail.interfaces.attention import AttentionBackend, BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import NO_SLOT
from dovetail.interfaces.model import Model
from dovetail.layers.context import StepAdapters, use_adapters
from dovetail.runner.device import DeviceCalls, Graph
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.rows.block_table import BlockTable
from dovetail.runner.rows.staging import Staging
from dovetail.runner.rows.tensors import DeviceTensors, Forward, known_tokens
from dovetail.runner.step.step_reader import Computed, StepPass

log = logging.getLogger(__name__)

FIRST_CONTEXT_TOKENS = 4096
CONTEXT_FACTOR = 8


class Key(NamedTuple):
    """The steps that a graph is for: number of rows, maximum context, whether rows may use
    adapters."""

    rows: int
    context: int
    uses_adapters: bool = False


def contexts(max_model_tokens: int) -> tuple[int, ...]:
    """Return the maximum contexts to capture graphs for; the last one is the model's maximum."""
    found, tokens = [], FIRST_CONTEXT_TOKENS
    while tokens < max_model_tokens:
        found.append(tokens)
        tokens *= CONTEXT_FACTOR
    return (*found, max_model_tokens)


def captured_keys(
    sizes: Sequence[int], max_model_tokens: int, *, serves_adapters: bool = False
) -> list[Key]:
    """Return the steps to capture, largest first: every size for the shortest context; for longer
    ones powers of two and the largest size. If adapters are served, each with and without."""
    shortest, *longer = contexts(max_model_tokens)
    coarse = [size for size in sizes if size & (size - 1) == 0 or size == max(sizes)]
    pairs = [(size, shortest) for size in sizes]
    pairs += [(size, context) for context in longer for size in coarse]
    uses = (False, True) if serves_adapters else (False,)
    return sorted((Key(*pair, use) for pair in pairs for use in uses), reverse=True)


def why_not_captured(
    run: RunSpec, backend: AttentionBackend, model: Model, *, reads_inner: bool
) -> str | None:
    """Return why no step is captured; None if steps may be. `reads_inner`: a drafter reads states
    within the model."""
    if reads_inner:
        return "a drafter reads states within the model"
    if run.is_eager or not run.graph_sizes:
        return "graphs are switched off"
    if run.rank.context_size > 1:
        return "the KV cache is divided over ranks"
    if run.pooling is not None:
        return "steps hold whole prompts"
    if run.model.encoder is not None:
        return "the decoder attends to an encoder's rows"
    if "graphs" not in backend.capabilities:
        return f"attention backend {run.attention.name} cannot be captured"
    if "needs_host_rows" in model.capabilities:
        return "the model looks at rows on the host"
    return model.no_graphs_because or None


def graph_manager(
    run: RunSpec,
    forward: Forward,
    tensors: DeviceTensors,
    tables: Sequence[BlockTable],
    calls: DeviceCalls,
    reason: str | None,
) -> GraphManager:
    """Return the manager of a run's captured steps; `reason`, if set, is why there are none."""
    sizes = () if reason else run.graph_sizes or ()
    keys: list[Key] = []
    if sizes:
        low_rank = run.adapters is not None and run.adapters.max_rank > 0
        keys = captured_keys(sizes, run.max_model_tokens, serves_adapters=low_rank)
    manager = GraphManager(forward, tensors, tables, calls, keys)
    manager.reason = reason or manager.reason
    return manager


class GraphManager:
    """Graphs of the steps in `keys`, largest first; `reason` is why nothing is captured, if so."""

    def __init__(
        self,
        forward: Forward,
        tensors: DeviceTensors,
        tables: Sequence[BlockTable],
        calls: DeviceCalls,
        keys: Sequence[Key],
    ) -> None:
        self._forward = forward
        self._tensors = tensors
        self._tables = tables
        self._calls = calls
        self._keys = keys
        self._most_rows = max((key.rows for key in keys), default=0)
        device = tensors.last_tokens.device
        self._staging = Staging(device, calls, (64 + 16 * len(tables)) * (self._most_rows + 2))
        self._starts = torch.arange(self._most_rows + 1, dtype=torch.int32, device=device)
        self._graphs: dict[Key, Graph] = {}
        self._ladders: dict[bool, list[tuple[int, list[int]]]] = {}
        self.reason: str | None = None if keys else "no sizes were asked for"
        self.capture_s = 0.0

    @property
    def num_graphs(self) -> int:
        """Return how many graphs are captured."""
        return len(self._graphs)

    @property
    def num_wanted(self) -> int:
        """Return how many graphs are to be captured."""
        return len(self._keys)

    @torch.inference_mode()
    def run_largest(self) -> None:
        """Run the largest graphs' steps without capturing them. Mutates: the null block"""
        longest = max(self._keys, key=lambda key: (key.context, key.rows, key.uses_adapters))
        for key in {self._keys[0], longest}:
            self._run_at(self._staging.upload(self._padded(None, key)), key)

    def capture(self) -> None:
        """Capture every size; if one fails, all steps run eagerly. Mutates: self"""
        begun_s = time.perf_counter()
        for key in self._keys:
            graph = self._calls.graph()
            if graph is None:
                self.reason = "the device has no graphs"
                return
            try:
                self._capture_one(graph, key)
            except RuntimeError as error:
                self.forget()
                self.reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                log.warning("steps are not captured as graphs: %s", self.reason)
                return
            self._graphs[key] = graph
        self._ladders = {use: _ladder(self._graphs, uses_adapters=use) for use in (False, True)}
        self.capture_s = time.perf_counter() - begun_s
        log.info("captured %d graphs in %.2f s", self.num_graphs, self.capture_s)

    def forget(self) -> None:
        """Drop all graphs, as when the memory they use moves. Mutates: self"""
        self._graphs.clear()
        self._ladders.clear()

    def take(self, step: StepPass) -> Computed | None:
        """Return the outputs of a captured step, None for any other. Valid until the next step.
        Mutates: the KV cache"""
        inputs, count = step.inputs, len(step.sampling)
        is_small = count <= self._most_rows and count == len(inputs.rows) == len(inputs.token_ids)
        if not (self._graphs and is_small and step.is_plain):
            return None
        key = self._find(count, int(inputs.seq_lens.max()), step.adapters is not None)
        if key is None:
            return None
        self._tensors.tables.refresh()
        uploaded = self._staging.upload(self._padded(inputs, key))
        hidden = self._graphs[key].replay()
        return Computed(hidden=hidden[:count], drawn_rows=uploaded[2][:count])

    def _find(self, count: int, longest: int, uses_adapters: bool) -> Key | None:
        """Return the smallest graph that the step fits into."""
        for context, sizes in self._ladders[uses_adapters]:
            place = bisect_left(sizes, count)
            if context >= longest and place < len(sizes):
                return Key(sizes[place], context, uses_adapters)
        return None

    def _padded(self, inputs: StepInputs | None, key: Key) -> list[np.ndarray]:
        """Return a step's arrays padded for a graph. None: only padding."""
        rows = key.rows
        num_padding = rows if inputs is None else rows - len(inputs.rows)
        null_row = len(self._tensors.last_tokens) - 1
        token_ids = np.zeros(rows, dtype=np.int64)
        positions = np.zeros(rows, dtype=np.int64)
        row_ids = np.full(rows, null_row, dtype=np.int64)
        seq_lens = np.ones(rows, dtype=np.int32)
        slots = [np.zeros(rows, dtype=np.int64) for _ in self._tables]
        adapters = np.full(rows, NO_SLOT, dtype=np.int32)
        if inputs is not None:
            used = rows - num_padding
            token_ids[:used], positions[:used] = inputs.token_ids, inputs.told_positions
            row_ids[:used], seq_lens[:used] = inputs.rows, inputs.seq_lens
            for table, own in zip(self._tables, slots, strict=True):
                own[:used] = table.slots(inputs.rows, inputs.positions)
            if inputs.adapters is not None:
                adapters[:used] = inputs.adapters
        extra = [adapters] if key.uses_adapters else []
        return [token_ids, positions, row_ids, seq_lens, *slots, *extra]

    def _capture_one(self, graph: Graph, key: Key) -> None:
        """Capture one size over the buffers that its steps are uploaded to. Mutates: graph"""
        places = self._staging.upload(self._padded(None, key))
        graph.capture(lambda: self._run_at(places, key))

    def _run_at(self, places: Sequence[torch.Tensor], key: Key) -> torch.Tensor:
        """Return the hidden states for the buffers' content. Shapes: [rows, E]"""
        token_ids, positions, row_ids, seq_lens, *slots = places
        adapters = StepAdapters(slots=slots.pop()) if key.uses_adapters else None
        rows, context = key.rows, key.context
        known = known_tokens(token_ids, row_ids, self._tensors.last_tokens)
        layouts = [
            BatchLayout(
                query_start=self._starts[: rows + 1],
                seq_lens=seq_lens,
                block_table=self._tensors.tables.gather(group, row_ids, context),
                slots=slots[group],
                query_start_host=list(range(rows + 1)),
                seq_lens_host=[context] * rows,
                block_tokens=table.block_tokens,
                max_query_tokens=1,
                max_seq_tokens=context,
            )
            for group, table in enumerate(self._tables)
        ]
        with use_adapters(adapters):
            return self._forward(known, positions, layouts)


def _ladder(keys: Iterable[Key], *, uses_adapters: bool) -> list[tuple[int, list[int]]]:
    """Return the captured numbers of rows for each context, both in ascending order."""
    sizes: dict[int, list[int]] = {}
    for key in sorted(keys):
        if key.uses_adapters == uses_adapters:
            sizes.setdefault(key.context, []).append(key.rows)
    return sorted(sizes.items())
