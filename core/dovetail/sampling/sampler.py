"""Sampler: the logits of a step's rows become one token per row, in the fixed order.

Raw logits are kept for logprobs, then: allowed ids, bans, biases, penalties; greedy rows take
their best token and leave; temperature, filter processors, top-k and top-p, the draw; logprobs of
what was drawn. What no row of the step uses is skipped. Knows no model and no scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.step import TokenLogprobs
from dovetail.sampling import rows as bits
from dovetail.sampling.draw import draw, uniforms
from dovetail.sampling.filters import filter_top
from dovetail.sampling.logprobs import token_logprobs
from dovetail.sampling.penalties import Penalties, uses_penalties
from dovetail.sampling.processors import ProcessorChain, ProcessorRaised
from dovetail.sampling.rows import RowParams

NOT_FINITE = "the model's logits are not finite (NaN or infinity)"
NOTHING_LEFT = "no token is left: the bans and allowed ids of this request exclude each other"
BROKEN = "a logits processor left logits that are not finite (NaN or infinity)"


@dataclass(slots=True, kw_only=True)
class Draws:
    """What a step drew. `token_ids` has one entry per row (0 for a faulty one); `logprobs` and
    `faults` are keyed by index into the step's rows."""

    token_ids: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DrawStep:
    """The rows that draw in one step. `rows` are row numbers, `positions` counts each row's
    tokens drawn so far. `features` holds each row's bits, `union` all of them together."""

    rows: np.ndarray
    positions: np.ndarray
    features: np.ndarray
    union: int
    row_list: list[int]
    faults: dict[int, str] = field(default_factory=dict)


class Sampler:
    """The sampling state of all rows of one runner. One thread calls it."""

    def __init__(self, max_rows: int, processors: Mapping[str, LogitsProcessor]) -> None:
        self._params = RowParams(max_rows)
        self._penalties = Penalties()
        self._chain = ProcessorChain(processors)
        self._faults: dict[int, str] = {}

    def add_row(self, tokens: RowTokens, seed: int) -> None:
        """Start a row. A processor's fault is kept and reported by the row's draws.

        Mutates: self
        """
        self.remove_row(tokens.row)
        is_wanted, fault = self._chain.add_row(tokens)
        features = bits.PROCESSED if is_wanted else 0
        if uses_penalties(tokens.params):
            self._penalties.add_row(tokens.row, tokens.params, tokens.prompt_ids, tokens.output_ids)
            features |= bits.PENALISED
        self._params.fill(tokens.row, tokens.params, seed, features=features)
        if fault is not None:
            self.condemn(tokens.row, fault)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self._chain.remove_row(row)
        self._penalties.remove_row(row)
        self._faults.pop(row, None)
        self._params.features[row] = 0

    def condemn(self, row: int, fault: str) -> None:
        """Remember a row's first fault: whatever it still draws is void. Mutates: self"""
        self._faults.setdefault(row, fault)
        self._params.features[row] |= bits.FAULTY

    def sample(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        positions: np.ndarray,
        recompute: Callable[[], torch.Tensor],
    ) -> Draws:
        """Return one token per row. `recompute` gives the same logits again: it is called when a
        processor raised, since its half-done changes cannot be told from its neighbours'.

        Shapes: logits [S, V], rows and positions [S]
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
        if step.union == 0:
            return self._finish(step, *_best(logits))
        if step.union & bits.FAULTY:
            self._recall_faults(step)
        try:
            return self._run(logits, step, is_alone=False)
        except ProcessorRaised:
            return self._run(recompute(), step, is_alone=True)

    def _run(self, logits: torch.Tensor, step: DrawStep, *, is_alone: bool) -> Draws:
        """Run the whole pipeline. Mutates: logits, step.faults"""
        work = logits.float().contiguous()
        raw = self._raw(work, step)
        if step.union & (bits.PROCESSED | bits.PENALISED):
            self._change(work, step, is_alone)
        ids, tops = self._pick(work, step, is_alone)
        draws = self._finish(step, ids, tops)
        if raw is not None:
            self._add_logprobs(raw, step, draws)
        return draws

    def _raw(self, work: torch.Tensor, step: DrawStep) -> torch.Tensor | None:
        """Return the logits of rows that want logprobs, safe from later changes."""
        if not step.union & bits.LOGPROBS:
            return None
        if not step.union & ~bits.LOGPROBS:
            return work
        wants = np.flatnonzero(step.features & bits.LOGPROBS)
        return work[torch.from_numpy(wants).to(work.device)]

    def _change(self, work: torch.Tensor, step: DrawStep, is_alone: bool) -> None:
        """Apply what may change the best token. Mutates: work, step.faults"""
        for index, top in enumerate(work.amax(dim=1).tolist()):
            if not math.isfinite(top):
                step.faults.setdefault(index, NOT_FINITE)
        if step.union & bits.PROCESSED:
            for stage in ("allow", "ban", "bias"):
                self._apply(stage, work, range(len(step.row_list)), step, is_alone)
        if step.union & bits.PENALISED:
            self._penalties.apply(work, step.row_list)

    def _apply(
        self,
        stage: str,
        logits: torch.Tensor,
        indices: range | list[int],
        step: DrawStep,
        is_alone: bool,
    ) -> None:
        """Run one stage over logits whose row i is the step's row indices[i].

        Rows that are faulty already are hidden from processors.
        Mutates: logits, step.faults
        """
        rows = [-1 if i in step.faults else step.row_list[i] for i in indices]
        if not is_alone:
            self._chain.apply(stage, logits, rows)
            return
        for i, fault in self._chain.apply_alone(stage, logits, rows).items():
            step.faults[indices[i]] = fault

    def _pick(
        self, work: torch.Tensor, step: DrawStep, is_alone: bool
    ) -> tuple[list[int], list[float]]:
        """Return each row's token and its largest logit. Mutates: work, step.faults"""
        random = np.flatnonzero(step.features & bits.RANDOM)
        if random.size == 0:
            return _best(work)
        if random.size == len(step.row_list):
            return self._draw(work, random, step, is_alone)
        ids, tops = _best(work)
        part = work[torch.from_numpy(random).to(work.device)]
        for i, token_id, top in zip(
            random.tolist(), *self._draw(part, random, step, is_alone), strict=True
        ):
            ids[i], tops[i] = token_id, top
        return ids, tops

    def _draw(
        self, logits: torch.Tensor, indices: np.ndarray, step: DrawStep, is_alone: bool
    ) -> tuple[list[int], list[float]]:
        """Draw for rows that are not greedy. Row i of logits is the step's row indices[i].

        Mutates: logits, step.faults
        """
        device, rows = logits.device, step.rows[indices]
        best = logits.amax(dim=1, keepdim=True)
        # Rows that are not finite would spread NaN into the searches; their token is void anyway.
        logits.sub_(best).masked_fill_((best - best) != 0, 0.0)
        logits.div_(torch.from_numpy(self._params.temperature[rows]).to(device).unsqueeze(1))
        if step.union & bits.PROCESSED:
            self._apply("filter", logits, indices.tolist(), step, is_alone)
            _repair(logits, indices.tolist(), step)
        if step.union & bits.FILTERED:
            filter_top(logits, self._params.top_k[rows], self._params.top_p[rows])
        uniform = uniforms(self._params.seed[rows], step.positions[indices])
        token_ids = draw(logits, torch.from_numpy(uniform).to(device))
        return token_ids.tolist(), best.squeeze(1).tolist()

    def _finish(self, step: DrawStep, token_ids: list[int], tops: list[float]) -> Draws:
        """Turn the rows' largest logits into faults, and record what was drawn.

        Mutates: self, step.faults, token_ids
        """
        was_changed = step.union & (bits.PROCESSED | bits.PENALISED)
        for i, top in enumerate(tops):
            if not math.isfinite(top):
                changed = NOTHING_LEFT if top == -math.inf else BROKEN
                step.faults.setdefault(i, changed if was_changed else NOT_FINITE)
        for i, fault in step.faults.items():
            token_ids[i] = 0
            self.condemn(step.row_list[i], fault)
        if step.union & bits.PENALISED:
            self._penalties.record(step.row_list, token_ids)
        return Draws(token_ids=token_ids, faults=step.faults)

    def _add_logprobs(self, raw: torch.Tensor, step: DrawStep, draws: Draws) -> None:
        """Fill in the logprobs of rows that want them. Mutates: draws"""
        wants = np.flatnonzero(step.features & bits.LOGPROBS)
        if len(raw) > len(wants):
            raw = raw[torch.from_numpy(wants).to(raw.device)]
        indices = wants.tolist()
        found = token_logprobs(
            raw,
            [draws.token_ids[i] for i in indices],
            self._params.num_logprobs[step.rows[wants]].tolist(),
        )
        draws.logprobs = {
            i: one for i, one in zip(indices, found, strict=True) if i not in draws.faults
        }

    def _recall_faults(self, step: DrawStep) -> None:
        """Mark rows that failed before. Mutates: step.faults"""
        for i in np.flatnonzero(step.features & bits.FAULTY).tolist():
            step.faults[i] = self._faults[step.row_list[i]]


def _repair(logits: torch.Tensor, indices: list[int], step: DrawStep) -> None:
    """Make row maxima 0 again after filters, and fault rows that have no finite maximum.

    Faulty rows may hold anything; they are flattened so that the draw stays within bounds.
    Mutates: logits, step.faults
    """
    tops = logits.amax(dim=1, keepdim=True)
    logits.sub_(tops)
    for i, top in enumerate(tops.squeeze(1).tolist()):
        if not math.isfinite(top):
            step.faults.setdefault(indices[i], NOTHING_LEFT if top == -math.inf else BROKEN)
        if indices[i] in step.faults:
            logits[i] = 0.0


def _best(logits: torch.Tensor) -> tuple[list[int], list[float]]:
    """Return the first most likely token of each row and its logit. Shapes: [S, V] -> [S], [S]"""
    logits = logits.float()
    if logits.device.type != "cpu":
        values, ids = logits.max(dim=1)
        return ids.tolist(), values.tolist()
    # numpy's argmax is vectorised; torch's takes up to twenty times as long on a CPU.
    return logits.numpy().argmax(axis=1).tolist(), logits.amax(dim=1).tolist()
