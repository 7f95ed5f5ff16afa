"""RecordedForward: the forward pass of small steps, recorded once and replayed as one native call.

If every row computes one token, or a step is whole short prompts, the calls depend only on the
number of tokens; all else is data. So the inputs have fixed addresses, and the model's native calls
are recorded for each number of tokens when it occurs the second time. From then on Python's share
of a step is gone. A new program is replayed immediately and must give the model's output. A model
that runs anything but native calls is not recorded.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator

import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.layers.context import StepAdapters
from dovetail.runner.replay.recorded_inputs import PromptInputs, RecordedInputs, RowInputs
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.rows.block_table import BlockTable
from dovetail.runner.rows.layer_groups import StateKeeper, put_nothing_back
from dovetail.runner.step.step_reader import Computed, StepPass
from dovetail_kernels.cpu import library as native
from dovetail_kernels.cpu.program import NotRecordable, Pool, Program, record

MAX_ROWS = 64
"""With more rows, the products take so long that recording is not worth its memory."""
MAX_DRAFTED_ROWS = 160
"""The same for steps with drafts, whose positions are rows: they take more rows for each token that
results."""
MAX_PROMPT_TOKENS, MAX_PROMPTS = 128, 16
"""The same for prompts: the maximum tokens and prompts of a step."""

log = logging.getLogger(__name__)

Forward = Callable[
    [torch.Tensor, torch.Tensor, list[BatchLayout], torch.Tensor | None, StepAdapters | None],
    torch.Tensor,
]
"""(token_ids, positions, one layout per KV group, marks of second texts, adapters in use) -> hidden
states."""
Inner = dict[int, torch.Tensor | None]
"""States within the model that a drafter reads, by the layer that follows them."""
STEPS_OF_SIZES = ((16, 1), (40, 2), (64, 4), (MAX_DRAFTED_ROWS, 8))
"""(maximum rows, multiple): drafts of up to that many rows are padded to a multiple."""
OFTEN, LARGER = 64, 1.25
"""A padded size that occurred less than OFTEN times runs as a recorded one up to LARGER times its
size: recording takes two steps' time, and idle rows a tenth of one."""
Size = tuple[int, bool]
"""A number of tokens, and whether some of them use adapters."""


def padded(count: int) -> int:
    """Return the number of rows for a step with `count` known and drafted tokens, padded so that
    few sizes have to be recorded."""
    for limit, multiple in STEPS_OF_SIZES:
        if count <= limit:
            return -(-count // multiple) * multiple
    return count


def sizes_ahead(max_count: int) -> Iterator[int]:
    """Yield sizes of steps with drafts up to `max_count`, each at most LARGER times the last."""
    first = 2
    while first <= max_count:
        last = min(max_count, max(padded(first), int(LARGER * first)))
        found = max(size for size in range(first, last + 1) if padded(size) == size)
        yield found
        first = found + 1


def recorded_rows(
    forward: Forward,
    tables: list[BlockTable],
    max_rows: int,
    sizes: Collection[int] | None = None,
    inner: Inner | None = None,
    states: StateKeeper | None = None,
    *,
    pads: bool = False,
    shares_rows: bool = False,
) -> RecordedForward:
    """Return the recorder of steps in which every row computes one token. `sizes`: only these
    numbers of rows are recorded (None: all). `inner`, `states`, `pads`: see RecordedForward;
    `shares_rows`: see RowInputs."""
    max_recorded = max_rows if sizes is None else min(max_rows, MAX_ROWS, max(sizes, default=1))
    counts = (
        range(1, max_recorded + 1)
        if sizes is None
        else frozenset(s for s in sizes if s <= max_recorded)
    )
    inputs = RowInputs(tables, max_recorded, shares_rows=shares_rows)
    return RecordedForward(forward, inputs, counts, inner, states, pads=pads)


def recorded_prompts(forward: Forward, tables: list[BlockTable], max_rows: int) -> RecordedForward:
    """Return the recorder of steps that compute a few short prompts."""
    inputs = PromptInputs(tables, min(max_rows, MAX_PROMPTS), MAX_PROMPT_TOKENS)
    return RecordedForward(forward, inputs, range(1, MAX_PROMPT_TOKENS + 1))


def recorder_of(
    run: RunSpec,
    device_type: str,
    forward: Forward,
    tables: list[BlockTable],
    inner: Inner,
    states: StateKeeper,
    *,
    shares_rows: bool,
) -> RecordedForward | None:
    """Return the recorder of a run's small steps, if the run allows recording. `shares_rows`: a
    row's drafts read its cache together (RowInputs)."""
    if not is_recorded(run, device_type):
        return None
    if run.pooling is not None:
        return recorded_prompts(forward, tables, run.max_rows)
    rows, sizes = min(run.max_rows, MAX_ROWS), run.graph_sizes
    if run.acceptance is not None:  # drafts are rows too
        rows, sizes = MAX_DRAFTED_ROWS, None
    return recorded_rows(forward, tables, rows, sizes, inner, states, shares_rows=shares_rows)


def is_recorded(run: RunSpec, device_type: str) -> bool:
    """Return whether the run allows small steps to be recorded."""
    is_other = bool(run.is_eager or run.ops)
    return not is_other and run.rank.context_size == 1 and device_type == "cpu"


class RecordedForward:
    """Programs by number of tokens and use of adapters, and the fixed buffers of their inputs. Only
    numbers in `counts` are recorded. A replay also restores the states that a pass saves in
    `inner`. `states` undoes trial passes. Steps with drafts, and all steps with `pads`, are padded
    to a few sizes."""

    def __init__(
        self,
        forward: Forward,
        inputs: RecordedInputs,
        counts: Collection[int],
        inner: Inner | None = None,
        states: StateKeeper | None = None,
        *,
        pads: bool = False,
    ) -> None:
        self._forward = forward
        self._pads = pads
        self._states = states
        self._inputs = inputs
        self._counts = counts
        self._programs: dict[Size, Program | None] = {}
        self._inner = {} if inner is None else inner
        self._left: dict[Size, Inner] = {}
        self._num_seen: Counter[Size] = Counter()
        self._records_adapters = True
        self._pool = Pool()
        self._reason: str | None = native.missing_reason()

    @property
    def reason(self) -> str | None:
        """Return why nothing is recorded; None if recording is on."""
        return self._reason

    @property
    def sizes(self) -> set[Size]:
        """Return the sizes of the steps that are recorded."""
        return {size for size, program in self._programs.items() if program is not None}

    def take(self, step: StepPass) -> Computed | None:
        """Return the outputs of a step that can be replayed, None for any other. Mutates: as run"""
        hidden = self.run(step.inputs, step.second_text) if step.is_plain else None
        if hidden is None:
            return None
        after = None if step.after is None else torch.from_numpy(step.after)
        return Computed(hidden=hidden, drawn_after=after)

    def run(
        self, inputs: StepInputs, second_text: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Return the hidden states of a step that can be replayed, None for any other.
        Shapes: second_text [T] (see ForwardContext) -> [T, E]

        Drafts are rows of their own, except that models with recurrent states do not replay them.
        The hidden states are valid until the next step. Mutates: self, and the KV cache
        """
        if inputs.drafted and self._states is not None and self._states.has_states:
            return None
        pads = self._pads or bool(inputs.drafted)
        count = len(inputs.token_ids)
        total = padded(count) if pads and inputs.cross is None else count
        if self._reason is not None or total not in self._counts or not self._inputs.fits(inputs):
            return None
        size = total, inputs.adapters is not None
        if size[1] and not self._records_adapters:
            return None
        if pads:
            size = self._stand_in(size)
            total = size[0]
        if size not in self._programs:
            self._programs[size] = None
            if not pads:
                return None  # recorded when it occurs again; with few sizes, immediately
        self._inputs.fill(inputs, second_text)
        if total > count:
            self._inputs.pad(count, total)
        program = self._programs[size]
        if program is None:
            put_back = put_nothing_back if self._states is None else self._states.keep(inputs)
            found = self._begin(size, put_back)
            return None if found is None else found[:count]
        self._inner.update(self._left[size])
        return program.run()[:count]

    def _stand_in(self, size: Size) -> Size:
        """Return the size that a step runs as: its own, or a larger one (see OFTEN).
        Mutates: self"""
        if self._programs.get(size) is not None:
            return size
        self._num_seen[size] += 1
        if self._num_seen[size] >= OFTEN:
            return size
        larger = ((n, size[1]) for n in range(size[0] + 1, int(LARGER * size[0]) + 1))
        return next((one for one in larger if self._programs.get(one) is not None), size)

    def record_ahead(self, seconds: float) -> None:
        """Record sizes of steps with drafts in advance, the smallest first, until every step has
        one at most LARGER times as large, or the time is up. Mutates: self"""
        if self._states is not None and self._states.has_states:
            return
        end_s = time.monotonic() + seconds
        for total in sizes_ahead(max(self._counts)):
            if self._reason is not None or time.monotonic() > end_s:
                return
            if self._programs.get((total, False)) is None:
                self._inputs.pad(0, total)
                self._begin((total, False), put_nothing_back)

    def _begin(self, size: Size, put_back: Callable[[], None]) -> torch.Tensor | None:
        """Record a program, replay it and check that its output is the model's own; return the
        output, or None if there is nothing to record. `put_back` undoes a run's changes to states.
        Mutates: self, and the KV cache"""
        program = self._record(size)
        put_back()
        if program is None:
            return None
        wanted = program.output.clone()
        if torch.equal(program.run().nan_to_num(), wanted.nan_to_num()):
            return program.output
        self._reason = "a repeated step differed from the model's own"
        log.warning("steps are not recorded: %s", self._reason)
        put_back()
        return self._run_model(size)

    def _record(self, size: Size) -> Program | None:
        """Return the program of steps of a size; None, permanently, if the model has none."""
        layouts: list[BatchLayout] = []
        try:
            program = record(lambda: self._run_model(size, layouts), self._pool, owner=layouts)
        except NotRecordable as error:
            self._give_up(size, str(error))
            return None
        log.debug("recorded %d calls for %d tokens", len(program), size[0])
        self._programs[size] = program
        self._left[size] = dict(self._inner)
        return program

    def _give_up(self, size: Size, reason: str) -> None:
        """Stop recording steps, or only steps with adapters. Mutates: self"""
        if size[1]:
            self._records_adapters = False
            log.info("steps with adapters are not recorded: %s", reason)
        else:
            self._reason = reason
            log.info("steps are not recorded: %s", reason)

    def _run_model(self, size: Size, all_layouts: list[BatchLayout] | None = None) -> torch.Tensor:
        """Return the hidden states for the fixed buffers' content. `all_layouts`, if given, gets
        the layouts."""
        count, has_adapters = size
        layouts = self._inputs.layouts(count)
        if all_layouts is not None:
            all_layouts.extend(layouts)
        adapters = self._inputs.adapters(count) if has_adapters else None
        second_text = self._inputs.second_text(count)
        return self._forward(*self._inputs.tokens(count), layouts, second_text, adapters)
