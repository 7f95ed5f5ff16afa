"""StepHalves: decides which steps are divided into two halves, and what each half computes.

A half is the step's first or last tokens, with rows and layouts of its own. The
second half may begin within a row: the row is then computed like two chunks of a prompt, one after
the other in every layer. Sampling sees the whole step again. `parallel.halves` interleaves the
halves.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.spec import HalvesSpec, RunSpec
from dovetail.parallel.groups import data_group
from dovetail.parallel.halves import HalfBatches, alternates
from dovetail.runner.device import DeviceCalls
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.rows.tensors import StepTensors
from dovetail.runner.step.step_reader import Computed, StepPass

log = logging.getLogger(__name__)

UNEVEN = 0.25
"""Rows are not cut if the halves differ by at most this share of the step's tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfStep:
    """One half of a step. `first_token` is its offset in the whole step; `read` are its tokens
    whose hidden states are needed (None: all); `around` surrounds its forward pass. `inner`
    collects the hidden states that a drafter reads inside the model.

    Shapes: token_ids, positions, second_text [T of the half], read [S]
    """

    inputs: StepInputs
    first_token: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    layouts: Sequence[BatchLayout]
    second_text: torch.Tensor | None
    read: np.ndarray | None
    around: AbstractContextManager[None]
    inner: dict[int, torch.Tensor] = field(default_factory=dict)


Forward = Callable[[HalfStep], torch.Tensor]
"""Runs the model on a half. Shapes: -> [T of the half, E]"""
Divided = Callable[[StepPass, int], Computed]
"""Runs a step whose second half begins with a token."""


class StepHalves:
    """Divides the steps of a run. `cuts_rows`: a half may begin within a row; `divided` runs a step
    whose second half begins with a token."""

    def __init__(
        self,
        run: RunSpec,
        spec: HalvesSpec,
        calls: DeviceCalls,
        divided: Divided,
        *,
        cuts_rows: bool,
    ) -> None:
        self._run_divided = divided
        self._spec = spec
        self._calls = calls
        self._cuts_rows = cuts_rows
        self._halves = HalfBatches(alternates=alternates(run))
        self._engines = data_group(run.rank)

    def take(self, step: StepPass) -> Computed | None:
        """Return the outputs of a step in halves; None: it runs whole. Mutates: the KV cache"""
        cut = self.first_of_second(step.inputs)
        return None if cut is None else self._run_divided(step, cut)

    def first_of_second(self, inputs: StepInputs) -> int | None:
        """Return the first token of a step's second half; None: the step runs whole.

        Engines that share experts with this one divide the step too, or none does.
        """
        token = self._divided(inputs)
        return token if self._agreed(wants=token is not None) else None

    def abstain(self) -> None:
        """Report to the engines that share experts with this one that it has no tokens to
        divide."""
        self._agreed(wants=False)

    def _agreed(self, *, wants: bool) -> bool:
        """Return whether all engines that share experts divide this step."""
        if self._engines.size == 1:
            return wants
        group = self._engines.joined()
        return bool(group.all_gather(torch.tensor([wants], device=group.device)).all())

    def _divided(self, inputs: StepInputs) -> int | None:
        """Return the token at which this engine would divide a step, if at all."""
        spec, num_tokens = self._spec, len(inputs.token_ids)
        if num_tokens < min(spec.decode_tokens, spec.prefill_tokens):
            return None
        is_decode = all(step.num_tokens == 1 + len(step.drafts) for step in inputs.steps)
        if num_tokens < (spec.decode_tokens if is_decode else spec.prefill_tokens):
            return None
        return even_cut(inputs, cuts_rows=self._cuts_rows)

    def run(self, forward: Forward, halves: tuple[HalfStep, HalfStep]) -> torch.Tensor:
        """Return the hidden states of both halves, concatenated. Shapes: -> [T, E]"""
        here = self._calls.queue()

        def half(step: HalfStep) -> torch.Tensor:
            with here(), torch.inference_mode(), step.around:
                return forward(step)

        return torch.cat(self._halves.run(lambda: half(halves[0]), lambda: half(halves[1])))


def step_halves(
    run: RunSpec, calls: DeviceCalls, divided: Divided, *, sees_all: bool
) -> StepHalves | None:
    """Return what divides a run's steps, or None if they run whole. `sees_all`: tokens attend to
    later ones."""
    if run.halves is None:
        return None
    if run.model.encoder is not None:
        log.warning("steps are not divided: the decoder attends to an encoder's rows")
        return None
    cuts_rows = run.pooling is None and not sees_all
    return StepHalves(run, run.halves, calls, divided, cuts_rows=cuts_rows)


def even_cut(inputs: StepInputs, *, cuts_rows: bool) -> int | None:
    """Return the token at which a step is divided: the start of a row if that is about even, else a
    token within a row that may be cut. None: there is no such token."""
    starts, total = inputs.query_start, int(inputs.query_start[-1])
    between = starts[1:-1]
    nearest = int(between[np.abs(2 * between - total).argmin()]) if len(between) else None
    if nearest is not None and abs(2 * nearest - total) <= UNEVEN * total:
        return nearest
    middle = total // 2
    row = int(np.searchsorted(starts, middle, side="right")) - 1
    if cuts_rows and middle > starts[row] and row not in inputs.drafted:
        return middle
    return nearest


def divided_step(
    inputs: StepInputs,
    token: int,
    placed: StepTensors,
    *,
    second_text: torch.Tensor | None,
    read: np.ndarray | None,
    around: Callable[[StepInputs], AbstractContextManager[None]],
) -> tuple[HalfStep, HalfStep]:
    """Return the halves of a step; the second begins with `token`. `around` returns what surrounds
    a half's forward pass. Shapes: second_text [T], read [S]"""
    pairs = [divided_layout(layout, token) for layout in placed.layouts]
    halves = []
    for number, own in enumerate(divided_inputs(inputs, token)):
        part = slice(token, None) if number else slice(token)
        halves.append(
            HalfStep(
                inputs=own,
                first_token=token * number,
                token_ids=_part(placed.token_ids, part),
                positions=_part(placed.positions, part),
                layouts=[pair[number] for pair in pairs],
                second_text=None if second_text is None else _part(second_text, part),
                read=None if read is None else _read(read, token, number),
                around=around(own),
            )
        )
    return halves[0], halves[1]


def _part(x: torch.Tensor, part: slice) -> torch.Tensor:
    """Return a half's part. The second one's is cloned: it gets the alignment that kernels compiled
    for whole steps expect."""
    return x[part].clone() if part.start else x[part]


def _read(read: np.ndarray, token: int, number: int) -> np.ndarray:
    return read[read >= token] - token if number else read[read < token]


def divided_inputs(inputs: StepInputs, token: int) -> tuple[StepInputs, StepInputs]:
    """Return the two halves of a step's inputs. A row that is cut draws in the second one."""
    assert inputs.cross is None, "steps that write encodings are not divided"
    starts = inputs.query_start
    row = int(np.searchsorted(starts, token, side="right")) - 1
    begun = int(token - starts[row])
    first, second = list(inputs.steps[: row + bool(begun)]), list(inputs.steps[row:])
    if begun:
        cut, change = second[0], msgspec.structs.replace
        first[-1] = change(cut, num_tokens=begun, samples=False)
        second[0] = change(cut, start=cut.start + begun, num_tokens=cut.num_tokens - begun)
    drafts_first = [index for index in inputs.drafted if index < row]
    drafts_second = [index - row for index in inputs.drafted if index >= row]
    parts = (first, slice(token), drafts_first), (second, slice(token, None), drafts_second)
    halves = [_inputs_of(inputs, *part) for part in parts]
    return halves[0], halves[1]


def _inputs_of(whole: StepInputs, steps: list[Any], part: slice, drafted: list[int]) -> StepInputs:
    counts = np.array([step.num_tokens for step in steps], dtype=np.int64)
    return replace(
        whole,
        steps=steps,
        rows=np.array([step.row for step in steps], dtype=np.int64),
        starts=np.array([step.start for step in steps], dtype=np.int64),
        counts=counts,
        samples=np.array([step.samples for step in steps], dtype=bool),
        query_start=np.concatenate(([0], counts.cumsum())),
        token_rows=whole.token_rows[part],
        token_ids=whole.token_ids[part],
        positions=whole.positions[part],
        drafted=drafted,
        adapters=None if whole.adapters is None else whole.adapters[part],
        shifts=None if whole.shifts is None else whole.shifts[part],
    )


def divided_layout(layout: BatchLayout, token: int) -> tuple[BatchLayout, BatchLayout]:
    """Return the layouts of the tokens before `token` and of the rest. A row that is cut is in
    both; the first one counts only its tokens there."""
    starts, lens = layout.query_start_host, layout.seq_lens_host
    row = bisect_right(starts, token) - 1
    is_cut = token > starts[row]
    end = row + is_cut
    first_lens, seq_lens = lens[:end], layout.seq_lens[:end]
    if is_cut:
        behind = starts[row + 1] - token
        first_lens[-1] -= behind
        seq_lens = seq_lens.clone()
        seq_lens[-1:] -= behind
    first = _layout_of(
        layout,
        slice(end),
        slice(token),
        query_start=layout.query_start[: end + 1].clamp(max=token),
        seq_lens=seq_lens,
        hosts=([*starts[:end], token], first_lens),
    )
    second = _layout_of(
        layout,
        slice(row, None),
        slice(token, None),
        query_start=(layout.query_start[row:] - token).clamp_(min=0),
        seq_lens=layout.seq_lens[row:].clone(),
        hosts=([0, *(start - token for start in starts[row + 1 :])], lens[row:]),
    )
    return first, second


def _layout_of(
    whole: BatchLayout,
    rows: slice,
    tokens: slice,
    *,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    hosts: tuple[list[int], list[int]],
) -> BatchLayout:
    starts, lens = hosts
    sizes = whole.row_block_tokens
    return replace(
        whole,
        query_start=query_start,
        seq_lens=seq_lens,
        block_table=whole.block_table[rows],
        slots=_part(whole.slots, tokens),
        query_start_host=starts,
        seq_lens_host=lens,
        max_query_tokens=max(b - a for a, b in pairwise(starts)),
        max_seq_tokens=max(lens),
        row_block_tokens=None if sizes is None else _part(sizes, rows),
    )
