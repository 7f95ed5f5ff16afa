"""PromptAlignment: which row of the encoding each token of a decoder's prompt attends to.

For rows that request it, the attention probabilities of chosen cross-attention heads are recorded
while the prompt is computed. After its last step they are normalized over tokens, smoothed and
averaged over heads, and dynamic time warping finds the path with the most attention.
`server.api.audio` maps it to words and seconds.
Source: Radford et al., 2022, and the notes on word times of its authors' implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from dovetail.interfaces.data.sampling_params import Alignment
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import NewRow, Pooled, RowResult
from dovetail.layers.attention.cross import CrossCache
from dovetail.parallel.groups import Group, tensor_group
from dovetail.runner.rows.batch import StepInputs
from dovetail_kernels.time_warp import path, prominence


@dataclass(slots=True)
class _Row:
    """A prompt in progress: the attention of its layers so far, by layer name.

    Such prompts are computed from their first token on, even after a preemption.

    Shapes: keys [h, rows, D], seen [h, tokens, rows] each
    """

    wanted: Alignment
    num_tokens: int = 0
    keys: dict[str, torch.Tensor] = field(default_factory=dict)
    seen: dict[str, list[torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Watched:
    """A row's part in a step: its tokens, and its encoding among those written in this step (None:
    written earlier)."""

    row: _Row
    tokens: slice
    encoding: slice | None


class StepWatch:
    """Records what the layers of one step attend to: see `layers.context.StepMedia`."""

    def __init__(self, heads: dict[str, list[int]], watched: Sequence[_Watched]) -> None:
        self._heads = heads
        self._watched = watched

    def see(self, name: str, scale: float, q: torch.Tensor, k: torch.Tensor) -> None:
        """Record how the chosen heads of a layer attend. Shapes: q [T, H, D], k [W, H, D]"""
        chosen = self._heads.get(name)
        for one in self._watched if chosen else ():
            row = one.row
            if one.encoding is not None:
                keys = k[one.encoding][: row.wanted.num_rows, chosen]
                row.keys[name] = keys.transpose(0, 1).float().clone()
            if name in row.keys:
                queries = q[one.tokens][:, chosen].transpose(0, 1).float()
                scores = queries @ row.keys[name].transpose(1, 2) * scale
                row.seen.setdefault(name, []).append(scores.softmax(dim=-1))


class PromptAlignment:
    """The rows that request the alignment of their prompts."""

    def __init__(self, run: RunSpec, modules: Iterable[object], device: torch.device) -> None:
        self._device = device
        self._group = tensor_group(run.rank)
        self._heads = chosen_heads(run, modules, self._group)
        self._rows: dict[int, _Row] = {}

    def add_row(self, new: NewRow) -> None:
        """Start a row, if it requests alignment. Mutates: self"""
        self._rows.pop(new.row, None)
        if new.sampling.alignment is not None:
            assert not new.num_computed_tokens, "a prompt to be aligned is computed as a whole"
            self._rows[new.row] = _Row(new.sampling.alignment)

    def free_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored. Mutates: self"""
        self._rows.pop(row, None)

    def watch(self, inputs: StepInputs) -> StepWatch | None:
        """Return the recorder of a step, None if no row requests one."""
        if not self._rows:
            return None
        watched = []
        for step, first in zip(inputs.steps, inputs.query_start.tolist(), strict=False):
            row = self._rows.get(step.row)
            if row is not None:
                row.num_tokens += step.num_tokens
                tokens = slice(first, first + step.num_tokens)
                watched.append(_Watched(row, tokens, _encoding_of(inputs, step.row)))
        return StepWatch(self._heads, watched) if watched else None

    def results(self, inputs: StepInputs) -> dict[int, RowResult]:
        """Return the results of the prompts that end in a step, by index. All ranks of a group call
        it together. Mutates: self"""
        found = {}
        for index, step in enumerate(inputs.steps if self._rows else ()):
            row = self._rows.get(step.row) if step.samples else None
            if row is None:
                continue
            del self._rows[step.row]
            found[index] = self._result(step.row, row)
        return found

    def _result(self, number: int, row: _Row) -> RowResult:
        rows = path(self._matrix(row)).astype(np.float32)
        return RowResult(row=number, pooled=Pooled(shape=rows.shape, data=rows.tobytes()))

    def _matrix(self, row: _Row) -> np.ndarray:
        """Return how much each token attends to each row, over all heads. Shapes: [T, rows]"""
        total = torch.zeros(row.num_tokens, row.wanted.num_rows, device=self._device)
        for seen in row.seen.values():
            total += prominence(torch.cat(seen, dim=1)).sum(dim=0)
        if self._group.size > 1:
            total = self._group.joined().all_reduce(total)
        matrix: np.ndarray = total[row.wanted.first :].cpu().numpy()
        return matrix


def _encoding_of(inputs: StepInputs, row: int) -> slice | None:
    """Return a row's encoding among those written in a step."""
    if inputs.cross is None:
        return None
    places = np.flatnonzero(inputs.cross.rows == row).tolist()
    return slice(places[0], places[-1] + 1) if places else None


def chosen_heads(run: RunSpec, modules: Iterable[object], group: Group) -> dict[str, list[int]]:
    """Return this rank's heads that show times, by layer name: those named by the checkpoint, or
    all in the upper half of the decoder's layers."""
    layers = [one for one in modules if isinstance(one, CrossCache)]
    encoder = run.model.encoder
    named = () if encoder is None else encoder.alignment_heads
    if not named:
        upper = range(len(layers) // 2, len(layers))
        named = tuple((layer, head) for layer in upper for head in range(run.model.num_heads))
    found: dict[str, list[int]] = {}
    for layer, head in named:
        if layer < len(layers):
            count = layers[layer].spec.num_heads
            if head // count == group.rank:
                found.setdefault(layers[layer].name, []).append(head % count)
    return found
