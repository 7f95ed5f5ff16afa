"""Sampler: turns the logits of a step's rows into one token per row, in a fixed order.

The order is `dovetail.interfaces.logits.PIPELINE`. Raw logits are copied first if logprobs use
them; greedy rows take their best token before the temperature and are done; logprobs come last,
from the raw logits or from those drawn from. Stages that no row needs are skipped. From the
penalties on, all is one native call on a CPU, or kernels on a device that are started now and read
later. `plain.py` does the same without kernels, and for processors of the stages in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from dovetail.interfaces.acceptance import Acceptance
from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.interfaces.logits import PIPELINE, STAGES, LogitsProcessor, RowTokens
from dovetail.sampling import rows as bits
from dovetail.sampling.acceptance import Proposals
from dovetail.sampling.device import DeviceDraws, HostCopy, draws_on
from dovetail.sampling.drafts import SampledTokens, sample_drafts
from dovetail.sampling.logprobs import (
    ToldLogprobs,
    floats,
    listed,
    read,
    tell,
    token_logprobs,
    with_named,
)
from dovetail.sampling.pending import DoneDraws, EnqueuedDraws, PendingDraws
from dovetail.sampling.plain import PlainDraws
from dovetail.sampling.processors import ProcessorChain, ProcessorRaised
from dovetail.sampling.rows import RowParams
from dovetail.sampling.step import BROKEN, NOT_FINITE, NOTHING_LEFT, Draws, DrawStep
from dovetail_kernels.cpu.library import library
from dovetail_kernels.sample.native import NativeSampler, can_sample
from dovetail_kernels.sample.penalties import Penalties, uses_penalties
from dovetail_kernels.sample.seen import on_device

EARLY = PIPELINE[: PIPELINE.index("penalties")]
LATE = tuple(stage for stage in STAGES if stage not in EARLY)
"""Stages before and after the penalties."""

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
        self._vocab_size = vocab_size
        self._tells_processed = tells_processed
        self._tells_logits = tells_logits
        self._params = RowParams(max_rows)
        self._penalties = Penalties(self._params.tables)
        self._chain = ProcessorChain(processors)
        self._faults: dict[int, str] = {}
        self._plain = PlainDraws(self._params, self._penalties, acceptance)
        self.weighs_every_draft = acceptance is not None and not acceptance.is_exact
        """Whether drafts that were not sampled are proposed too."""
        has_native = uses_kernels and library() is not None
        self._native = NativeSampler(self._params.tables) if has_native else None
        self._takes = np.zeros(max_rows, dtype=np.int64)
        """How often a row was taken or freed: a former request's draws are not the next one's."""
        types = [t for t in ("cuda", "cpu") if draws_on(t) and (t != "cpu" or not has_native)]
        self._device_types = types if uses_kernels else []
        self._device = DeviceDraws(self._params, self._penalties)
        self._under_way: list[EnqueuedDraws] = []

    def warm_up(self, logits: torch.Tensor) -> None:
        """Compile the kernels that later steps may need, if they run here. Shapes: logits [S, V]"""
        if logits.device.type in self._device_types and self._device.can_draw(logits):
            self._device.warm_up(logits)

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
        self._params.fill(tokens.row, tokens.params, seed, features=features, uses_min_p=uses_min_p)
        if fault is not None:
            self.mark_failed(tokens.row, fault)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self._takes[row] += 1
        self._chain.remove_row(row)
        self._device.seen.remove_row(row)
        self._penalties.remove_row(row)
        self._faults.pop(row, None)
        self._params.clear(row)

    def note(self, row: int, token_ids: Sequence[int]) -> None:
        """Count tokens that a row got without a draw. Mutates: self"""
        self._device.seen.note(row, token_ids)
        self._penalties.record([row] * len(token_ids), token_ids)

    def mark_failed(self, row: int, fault: str) -> None:
        """Remember a row's first fault: all its later draws are invalid. Mutates: self"""
        self._faults.setdefault(row, fault)
        self._params.features[row] |= bits.FAULTY

    def has_processors(self, rows: np.ndarray) -> bool:
        """Return whether a processor looks at the drawn tokens of any of the rows. Shapes: [S]"""
        return bool((self._params.features[rows] & (bits.PROCESSED | bits.SHAPED)).any())

    def draft(self, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray) -> SampledTokens:
        """Return one draft per row from another model's logits. Shapes: as in `sample`"""
        return sample_drafts(self._params, logits, rows, positions)

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
        features = self._params.features[rows]
        if self._native is None or (features & ~bits.BY_LOGITS_ALONE).any():
            return None
        if logits.device.type != "cpu":
            return None
        work = logits.float().contiguous()
        if not can_sample(work):
            return None
        self._native(work, rows, positions)
        count = len(rows)
        tokens: list[int] = self._native.tokens[:count].tolist()
        return tokens if np.isfinite(self._native.best[:count]).all() else None

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
        features = self._params.features[rows]
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
            needed = (stage for stage in LATE if self._chain.needs(stage, step.row_list))
            step.stages = frozenset(needed)
        if step.union & bits.FAULTY:
            for i in np.flatnonzero(features & bits.FAULTY).tolist():
                step.faults[i] = self._faults[step.row_list[i]]
        run = self._enqueue if self._is_for_device(logits, step) else self._at_once
        try:
            return run(logits, step, is_alone=False)
        except ProcessorRaised:
            return run(recompute(), step, is_alone=True)

    def _is_for_device(self, logits: torch.Tensor, step: DrawStep) -> bool:
        """Return whether device kernels can do all of the step."""
        if logits.device.type not in self._device_types or not self._device.can_draw(logits):
            return False
        is_wide = self._vocab_size is not None and logits.shape[1] > self._vocab_size
        if step.proposals or (is_wide and step.union & bits.PENALISED):
            return False  # the device counts a row's seen tokens in lines of one width
        tells_processed = self._tells_processed and step.union & bits.LOGPROBS
        if not self._params.named.keys().isdisjoint(step.row_list):
            return False
        return not (step.union & bits.SHAPED or tells_processed)

    def _at_once(self, logits: torch.Tensor, step: DrawStep, *, is_alone: bool) -> PendingDraws:
        """Run the whole pipeline and wait for it. Mutates: logits, self, step.faults"""
        for pending in self._under_way:
            pending.collect()  # torch penalises only tokens the host knows
        self._under_way = []
        if self._device_types:
            self._device.seen.settle(step.row_list)
        return DoneDraws(self._run(logits, step, is_alone=is_alone), logits.device)

    def _enqueue(self, logits: torch.Tensor, step: DrawStep, *, is_alone: bool) -> PendingDraws:
        """Start the whole pipeline on the device. Mutates: logits, self, step.faults"""
        wants, picked, later = _wants(step), None, []
        if 0 < wants.size < len(step.row_list):
            picked = on_device(wants, logits.device)
        told_of, told_rows = logits, picked
        if step.union & bits.PROCESSED:
            if wants.size and logits.dtype == torch.float32:  # processors change them in place
                told_of, told_rows = (logits.clone() if picked is None else logits[picked]), None
            logits = logits.float()
            later.append(logits.amax(dim=1))
            self._apply_early(logits, step, is_alone)
        drawn = self._device.draw(logits, step)
        device_logprobs = None
        if wants.size:
            tokens = drawn.tokens if picked is None else drawn.tokens[picked]
            num_top = self._params.num_logprobs[step.rows[wants]].tolist()
            device_logprobs = tell(told_of, tokens, num_top, told_rows)
            later.append(device_logprobs.numbers)
        finish = partial(self._collect, step, self._takes[step.rows], device_logprobs)
        pending = EnqueuedDraws(drawn.tokens, HostCopy([drawn.told, *later]), finish)
        self._under_way = [one for one in self._under_way if not one.is_read] + [pending]
        return pending

    def _collect(
        self,
        step: DrawStep,
        takes: np.ndarray,
        device_logprobs: ToldLogprobs | None,
        arrays: list[np.ndarray],
    ) -> Draws:
        """Return the draws of a step whose numbers have arrived. Mutates: self, step.faults"""
        is_same = self._takes[step.rows] == takes
        known = is_same & ((self._params.features[step.rows] & bits.FAULTY) != 0)
        for i in np.flatnonzero(known).tolist():
            step.faults.setdefault(i, self._faults[step.row_list[i]])
        if step.union & bits.PROCESSED:
            for i, top in enumerate(arrays[1].tolist()):
                step.blame(i, top, is_changed=False)
        token_ids, tops = arrays[0][:, 0].tolist(), floats(arrays[0][:, 1:])
        is_finite = np.isfinite(tops[:, 0])
        if not is_finite.all():
            self._blame(step, tops[:, 0].tolist(), tops[:, 1].tolist())
        if step.union & bits.PENALISED:
            for i in np.flatnonzero(is_same & is_finite).tolist():
                self._device.seen.tell(step.row_list[i], token_ids[i])
        draws = self._finish(step, token_ids, is_same=is_same)
        if device_logprobs is not None:
            indices = _wants(step).tolist()
            own = [draws.token_ids[i] for i in indices]
            entries = read(device_logprobs, arrays[-1], own, tells_logits=self._tells_logits)
            self._take_logprobs(draws, indices, entries)
        return draws

    def _run(self, logits: torch.Tensor, step: DrawStep, *, is_alone: bool) -> Draws:
        """Run the whole pipeline. Mutates: logits, step.faults"""
        work = logits.float().contiguous()
        is_special = bool(step.proposals) or bool(step.union & bits.SHAPED)
        is_plain = self._native is None or is_special or not can_sample(work)
        logprob_logits = self._raw(work, step, is_plain=is_plain)
        if step.union & bits.PROCESSED:
            for index, top in enumerate(work.amax(dim=1).tolist()):
                step.blame(index, top, is_changed=False)
            self._apply_early(work, step, is_alone)
        tells_processed = self._tells_processed and bool(step.union & bits.LOGPROBS)
        if not is_plain:
            if tells_processed:
                logprob_logits = self._plain.processed(_wanting(work, step), _wants(step), step)
            tells = logprob_logits is None and bool(step.union & bits.LOGPROBS)
            draws = self._draw_natively(work, step, tells_logprobs=tells)
        else:
            draws = self._draw_plainly(work, step, is_alone, keeps_processed=tells_processed)
            if tells_processed:
                logprob_logits = _wanting(work, step)
        if logprob_logits is not None:
            self._add_logprobs(logprob_logits, step, draws)
        return draws

    def _raw(self, work: torch.Tensor, step: DrawStep, *, is_plain: bool) -> torch.Tensor | None:
        """Return an unchanged copy of the logits of rows that get logprobs after the draw.

        None if there are no such rows, or if processed logits are reported.
        """
        if self._tells_processed or not step.union & bits.LOGPROBS:
            return None
        changing = bits.PROCESSED
        if is_plain:
            changing |= bits.RANDOM | bits.PENALISED
        elif not (step.union & (bits.PROCESSED | bits.MANY_LOGPROBS) or self._tells_logits):
            return None
        if (step.features & bits.LOGPROBS).all() and not step.union & changing:
            return work
        return _wanting(work, step)

    def _apply_early(self, logits: torch.Tensor, step: DrawStep, is_alone: bool) -> None:
        """Run the stages before the penalties. Mutates: logits, step.faults"""
        for stage in EARLY:
            self._apply(stage, logits, range(len(step.row_list)), step, is_alone)

    def _apply(
        self,
        stage: str,
        logits: torch.Tensor,
        indices: Sequence[int],
        step: DrawStep,
        is_alone: bool,
    ) -> None:
        """Run one stage over logits whose row i is the step's row indices[i].

        Faulty rows are hidden from processors.
        Mutates: logits, step.faults
        """
        rows = [-1 if i in step.faults else step.row_list[i] for i in indices]
        if not is_alone:
            self._chain.apply(stage, logits, rows)
            return
        for i, fault in self._chain.apply_alone(stage, logits, rows).items():
            step.faults[indices[i]] = fault

    def _draw_natively(self, work: torch.Tensor, step: DrawStep, *, tells_logprobs: bool) -> Draws:
        """Penalise, draw and compute logprobs in one call. Mutates: self, step.faults"""
        native, tables = self._native, self._params.tables
        assert native is not None
        if step.union & bits.PENALISED:
            self._penalties.make_room(step.rows)
        top = None
        if tells_logprobs:
            top = max(0, int(tables.num_top[step.rows].max()))
            if top > work.shape[1]:
                top = work.shape[1]
                np.minimum(tables.num_top, top, out=tables.num_top)
        drawn = native(work, step.rows, step.positions, logprobs_top=top)
        count = len(step.row_list)
        if not np.isfinite(native.best[:count]).all():
            self._blame(step, native.best[:count].tolist(), native.raw_best[:count].tolist())
        draws = self._finish(step, native.tokens[:count].tolist())
        if drawn is not None:
            wants = _wants(step)
            indices, sizes = wants.tolist(), tables.num_top[step.rows[wants]].tolist()
            ids = [draws.token_ids[i] for i in indices]
            self._take_logprobs(draws, indices, listed(drawn, indices, ids, sizes))
        return draws

    def _blame(self, step: DrawStep, best: list[float], raw_best: list[float]) -> None:
        """Fault the rows whose largest logits are not finite. Mutates: step.faults"""
        was_processed = bool(step.union & bits.PROCESSED)
        for i, (top, raw_top) in enumerate(zip(best, raw_best, strict=True)):
            step.blame(i, raw_top, is_changed=was_processed)
            step.blame(i, top, is_changed=True)

    def _draw_plainly(
        self, work: torch.Tensor, step: DrawStep, is_alone: bool, *, keeps_processed: bool
    ) -> Draws:
        """Penalise and draw with torch operations. Mutates: work, self, step.faults"""
        if step.union & bits.PENALISED:
            for index, top in enumerate(work.amax(dim=1).tolist()):
                step.blame(index, top, is_changed=bool(step.union & bits.PROCESSED))
        shape = partial(self._apply, step=step, is_alone=is_alone)
        token_ids = self._plain.pick(work, step, shape, keeps_processed=keeps_processed)
        return self._finish(step, token_ids)

    def _finish(
        self, step: DrawStep, token_ids: list[int], *, is_same: np.ndarray | None = None
    ) -> Draws:
        """Mark faulty rows as failed, except those reassigned since (not is_same).

        Mutates: self, token_ids
        """
        for i, fault in step.faults.items():
            token_ids[i] = 0
            if is_same is None or is_same[i]:
                self.mark_failed(step.row_list[i], fault)
        return Draws(token_ids=token_ids, faults=step.faults)

    def _add_logprobs(self, logprob_logits: torch.Tensor, step: DrawStep, draws: Draws) -> None:
        """Add the logprobs of rows that want them, from their logits. Mutates: draws"""
        wants = _wants(step)
        indices = wants.tolist()
        entries = token_logprobs(
            logprob_logits,
            [draws.token_ids[i] for i in indices],
            self._params.num_logprobs[step.rows[wants]].tolist(),
            uses_kernels=self._native is not None,
            tells_logits=self._tells_logits,
        )
        for i, index in enumerate(indices):
            named = self._params.named.get(step.row_list[index])
            if named is not None:
                entries[i] = with_named(
                    entries[i], logprob_logits[i], named, tells_logits=self._tells_logits
                )
        self._take_logprobs(draws, indices, entries)

    @staticmethod
    def _take_logprobs(draws: Draws, indices: list[int], found: list[TokenLogprobs]) -> None:
        draws.logprobs = {
            i: one for i, one in zip(indices, found, strict=True) if i not in draws.faults
        }


def _wants(step: DrawStep) -> np.ndarray:
    """Return the indices of the rows that want logprobs."""
    return np.flatnonzero(step.features & bits.LOGPROBS)


def _wanting(work: torch.Tensor, step: DrawStep) -> torch.Tensor:
    """Return a copy of the logits of the rows that want logprobs."""
    if (step.features & bits.LOGPROBS).all():
        return work.clone()  # six times as fast as picking all rows
    return work[torch.from_numpy(_wants(step)).to(work.device)]
