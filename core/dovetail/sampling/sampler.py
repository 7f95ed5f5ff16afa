"""Sampler: turns the logits of a step's rows into one token per row, in a fixed order.

The order is `dovetail.interfaces.logits.PIPELINE`. Raw logits are copied first if logprobs use
them; greedy rows take their best token before the temperature and are done; logprobs come last,
from the raw logits or from those drawn from. Stages that no row needs are skipped. A step is done
by the first backend that can take it: one native call on a CPU, kernels on a device that are
started now and read later, or torch operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.sampling import features as bits
from dovetail.sampling.acceptance import Proposals
from dovetail.sampling.backend import SamplingBackend, SamplingState
from dovetail.sampling.device import DeviceBackend, draws_on
from dovetail.sampling.drafts import SampledTokens, sample_drafts
from dovetail.sampling.native import NativeBackend
from dovetail.sampling.pending import DoneDraws, PendingDraws
from dovetail.sampling.plain import PlainBackend
from dovetail.sampling.processors import LATE, ProcessorChain, ProcessorRaised
from dovetail.sampling.rows import SamplingRows
from dovetail.sampling.step import BROKEN, NOT_FINITE, NOTHING_LEFT, Draws, DrawStep
from dovetail.sampling.step_logprobs import StepLogprobs
from dovetail_kernels.cpu.library import library
from dovetail_kernels.sample.penalties import Penalties, uses_penalties

__all__ = ["BROKEN", "NOTHING_LEFT", "NOT_FINITE", "Draws", "PendingDraws", "Sampler"]


class Sampler:
    """The sampling state of all rows of one runner. One thread calls it.

    `uses_kernels` false: torch operations on the CPU too. `tells_processed`: logprobs are those of
    the logits drawn from; a greedy row's have no temperature and no filters. `tells_logits`: report
    logits instead of logprobs. `acceptance` decides on proposed drafts; with None there must be
    none. Logits may have more columns than `vocab_size`, for tokens that rows' adapters add (None:
    they never have).
    """

    def __init__(
        self,
        max_rows: int,
        processors: Mapping[str, LogitsProcessor],
        *,
        uses_kernels: bool = True,
        tells_processed: bool = False,
        tells_logits: bool = False,
        acceptance: Acceptance | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self._rows = rows = SamplingRows(max_rows)
        self._penalties = Penalties(rows.tables)
        self._chain = ProcessorChain(processors)
        self.weighs_every_draft = acceptance is not None and not acceptance.is_exact
        """Whether drafts that were not sampled are proposed too."""
        state = SamplingState(
            rows=rows,
            penalties=self._penalties,
            chain=self._chain,
            logprobs=StepLogprobs(
                rows=rows,
                uses_kernels=uses_kernels,
                tells_processed=tells_processed,
                tells_logits=tells_logits,
            ),
        )
        self._backends = _backends(state, uses_kernels, acceptance, vocab_size)

    def warm_up(self, logits: torch.Tensor) -> None:
        """Compile the kernels that later steps may need, if they run here. Shapes: logits [S, V]"""
        for backend in self._backends:
            backend.warm_up(logits)

    def add_row(self, tokens: RowTokens, seed: int) -> None:
        """Start a row. A processor's fault is stored and reported by the row's draws.

        Mutates: self
        """
        self.remove_row(tokens.row)
        stages, fault = self._chain.add_row(tokens)
        features = bits.PROCESSED if stages else 0
        is_random = tokens.params.temperature > 0.0
        if "before_temperature" in stages or (is_random and not stages.isdisjoint(LATE)):
            features |= bits.SHAPED
        if uses_penalties(tokens.params):
            self._penalties.add_row(tokens.row, tokens.params, tokens.prompt_ids, tokens.output_ids)
            features |= bits.PENALISED
        uses_min_p = not (is_random and self._chain.does("min_p", tokens.row))
        self._rows.fill(tokens.row, tokens.params, seed, features=features, uses_min_p=uses_min_p)
        if fault is not None:
            self.mark_failed(tokens.row, fault)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self._chain.remove_row(row)
        for backend in self._backends:
            backend.remove_row(row)
        self._penalties.remove_row(row)
        self._rows.clear(row)

    def note(self, row: int, token_ids: Sequence[int]) -> None:
        """Count tokens that a row got without a draw. Mutates: self"""
        for backend in self._backends:
            backend.note(row, token_ids)
        self._penalties.record([row] * len(token_ids), token_ids)

    def mark_failed(self, row: int, fault: str) -> None:
        """Remember a row's first fault: all its later draws are invalid. Mutates: self"""
        self._rows.mark_failed(row, fault)

    def has_processors(self, rows: np.ndarray) -> bool:
        """Return whether a processor looks at the drawn tokens of any of the rows. Shapes: [S]"""
        return bool((self._rows.features[rows] & (bits.PROCESSED | bits.SHAPED)).any())

    def draft(self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray) -> SampledTokens:
        """Return one draft per row from another model's logits. Shapes: as in `sample`"""
        return sample_drafts(self._rows, logits, rows, positions)

    def sample(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        positions: np.ndarray,
        recompute: Callable[[], torch.Tensor],
        proposals: Sequence[Proposals] = (),
    ) -> Draws:
        """Return one token per row: `begin`, immediately followed by `collect`."""
        return self.begin(logits, rows, positions, recompute, proposals).collect()

    def sample_lines(
        self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray
    ) -> list[int] | None:
        """Return a token for each line of logits, where one row may have several: the tokens that
        successive calls of `sample` would draw. None if that is not possible: a row's draw depends
        on earlier draws, needs logprobs or has a fault, or there is no native library.

        Shapes: logits [S, V], rows and positions [S] -> [S]
        """
        features = self._rows.features[rows]
        if (features & ~bits.BY_LOGITS_ALONE).any():
            return None
        tokens = (backend.draw_lines(logits, rows, positions) for backend in self._backends)
        return next((one for one in tokens if one is not None), None)

    def begin(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        positions: np.ndarray,
        recompute: Callable[[], torch.Tensor],
        proposals: Sequence[Proposals] = (),
    ) -> PendingDraws:
        """Start to draw one token per row; on a CPU it is done on return. `recompute` returns the
        same logits again. It is called, before this returns, when a processor raised, because its
        partial changes cannot be separated from other rows'.

        On a device this does not wait, and steps may begin before earlier ones are collected,
        except with rows that have processors: these look at tokens the host knows. `proposals` are
        drafts for the acceptance to decide on; those of greedy rows are ignored.
        Shapes: logits [S, V], rows and positions [S], no row twice
        Mutates: self; logits, when they are float32
        """
        features = self._rows.features[rows]
        step = DrawStep(
            rows=rows,
            positions=positions,
            features=features,
            union=int(np.bitwise_or.reduce(features)),
            row_list=rows.tolist(),
        )
        if proposals:
            chosen = (one.among((features & bits.RANDOM) != 0) for one in proposals)
            step.proposals = [one for one in chosen if one is not None]
        if step.union & bits.SHAPED:
            step.stages = self._chain.late_stages(step.row_list)
            is_shaped = (features & bits.SHAPED) != 0
            if not (is_shaped.all() or proposals) and logits.device.type == "cpu":
                return self._divided(logits, rows, positions, recompute, is_shaped)
        if step.union & bits.FAULTY:
            self._rows.recall(step)
        backend = self._backend_for(logits, step)
        try:
            return backend.draw(logits, step)
        except ProcessorRaised:
            step.is_apart = True
            return backend.draw(recompute(), step)

    def _divided(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        positions: np.ndarray,
        recompute: Callable[[], torch.Tensor],
        is_shaped: np.ndarray,
    ) -> DoneDraws:
        """Draw for the rows that processors shape, which need torch operations, and for the others.
        Shapes: as in `begin`, is_shaped [S]. Mutates: self"""
        whole = Draws(token_ids=[0] * len(rows))
        for at in (np.flatnonzero(is_shaped), np.flatnonzero(~is_shaped)):
            index = torch.from_numpy(at)
            again = partial(lambda index: recompute()[index], index)
            draws = self.sample(logits[index], rows[at], positions[at], again)
            for i, place in enumerate(at.tolist()):
                whole.token_ids[place] = draws.token_ids[i]
            whole.logprobs |= {int(at[i]): one for i, one in draws.logprobs.items()}
            whole.faults |= {int(at[i]): one for i, one in draws.faults.items()}
        return DoneDraws(whole, logits.device)

    def _backend_for(self, logits: torch.Tensor, step: DrawStep) -> SamplingBackend:
        """Return the first backend that can take the step, after what others do for its rows is
        settled. Mutates: self"""
        chosen = None
        for backend in self._backends:
            if chosen is None and backend.can_take(logits, step):
                chosen = backend
            else:
                backend.settle(step.row_list)
        assert chosen is not None, "the last backend takes every step"
        return chosen


def _backends(
    state: SamplingState, uses_kernels: bool, acceptance: Acceptance | None, vocab_size: int | None
) -> Sequence[SamplingBackend]:
    """Return the backends that run here, in the order in which they are tried. The last takes every
    step."""
    plain = PlainBackend(state, acceptance)
    if not uses_kernels:
        return (plain,)
    native = (NativeBackend(state),) if library() is not None else ()
    types = [t for t in ("cuda", "cpu") if draws_on(t) and (t != "cpu" or not native)]
    return (*native, *((DeviceBackend(state, types, vocab_size),) if types else ()), plain)
