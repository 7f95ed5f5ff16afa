"""RunnerMedia: the encodings that a rank keeps, and what a step takes of them.

Made by the model of features when a plan says so, kept under their keys until one says otherwise.
Knows no files and no formats: features are tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.interfaces.media import KEPT, READY, VECTORS, Encode, PartPlace, tensor_of
from dovetail.interfaces.model import Model
from dovetail.interfaces.spec import RunSpec
from dovetail.interfaces.step import NewRow, StepPlan
from dovetail.layers.context import StepMedia
from dovetail.layers.dtypes import dtype_of
from dovetail.parallel.groups import ALONE, tensor_group
from dovetail.runner.alignment import PromptAlignment
from dovetail.runner.batch import Batch, StepInputs

logger = logging.getLogger(__name__)


class RunnerMedia:
    """The media of one rank's rows."""

    def __init__(self, model: Model, run: RunSpec, device: torch.device) -> None:
        spec = run.model
        self._model = model
        self._failed = 0.0 if run.rank.is_last_stage else float("nan")
        self._group = tensor_group(run.rank) if run.encoder_mode == "data" else ALONE
        self._size = spec.hidden_size
        self._dtype = dtype_of(spec.dtype)
        self.alignment = PromptAlignment(run, cast(nn.Module, model).modules(), device)
        self._device = device
        self._encodings: dict[str, torch.Tensor] = {}
        self._failures: dict[str, str] = {}
        self._places: dict[int, tuple[PartPlace, ...]] = {}
        self._positions: dict[int, torch.Tensor] = {}
        self._prompts_see_all = facts_of(spec.whole_config).prompts_see_all
        self._prompt_tokens: dict[int, int] = {}

    def add_row(self, new: NewRow, batch: Batch) -> None:
        """Note what stands in a new row's prompt. Mutates: self, the batch's shifts"""
        self.free_row(new.row)
        if not new.parts:
            return
        self.alignment.add_row(new)
        self._places[new.row] = new.parts
        self._prompt_tokens[new.row] = new.num_prompt_tokens
        found = self._model.prompt_positions(new.num_prompt_tokens, new.parts)
        if found is not None:
            self._positions[new.row], batch.shifts[new.row] = found

    def free_row(self, row: int) -> None:
        """Forget a row. Mutates: self"""
        self._places.pop(row, None)
        self._positions.pop(row, None)
        self._prompt_tokens.pop(row, None)
        self.alignment.remove_row(row)

    def follow(self, plan: StepPlan) -> None:
        """Forget encodings and make others as a plan says. Mutates: self"""
        for key in plan.dropped_encodings:
            self._encodings.pop(key, None)
            self._failures.pop(key, None)
        kinds: dict[str, list[Encode]] = {}
        for content in plan.encode:
            is_ready = [one.name for one in content.features] == [READY]
            if is_ready or self._model.takes_media:
                kinds.setdefault(VECTORS if is_ready else content.kind, []).append(content)
        for kind, contents in kinds.items():
            if self._group.size > 1 and kind != VECTORS:
                self._encode_in_shares(kind, contents)
            else:
                self._encode(kind, contents)

    def failures(self, inputs: StepInputs) -> dict[int, str]:
        """Return why rows of a step must end: what they show could not be encoded."""
        found = {}
        for step in inputs.steps if self._failures else ():
            for place in self._places.get(step.row, ()):
                if place.key in self._failures:
                    found[step.row] = self._failures[place.key]
        return found

    def of_step(self, inputs: StepInputs) -> StepMedia | None:
        """Return what a step takes beside tokens, None if nothing."""
        if not self._places:
            return None
        places: list[np.ndarray] = []
        vectors: list[torch.Tensor] = []
        spans: list[tuple[int, int]] = []
        has_positions = False
        for step, first in zip(inputs.steps, inputs.query_start.tolist(), strict=False):
            end = step.start + step.num_tokens
            own = self._places.get(step.row, ())
            is_one = self._prompts_see_all and any(place.kind != VECTORS for place in own)
            if is_one and step.start == 0:
                spans.append((first, self._prompt_tokens[step.row]))
            for place in own:
                for where, rows in _met(place, step.start, end):
                    at = first + where - step.start
                    if place.kind != VECTORS and not is_one:
                        spans.append((at, len(rows)))
                    encoding = self._encodings.get(place.key)
                    if encoding is None:
                        assert not self._model.takes_media, "plans say what a step needs"
                        continue
                    places.append(np.arange(len(rows)) + at)
                    vectors.append(encoding[rows.start : rows.stop])
            table = self._positions.get(step.row)
            has_positions |= table is not None and step.start < table.shape[1]
        begun = () if inputs.cross is None else inputs.cross.keys
        watch = self.alignment.watch(inputs)
        if not places and not spans and not has_positions and not begun and watch is None:
            return None
        index = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
        empty = torch.empty(0, self._size, dtype=self._dtype, device=self._device)
        return StepMedia(
            places=torch.from_numpy(index).to(self._device),
            vectors=_joined(vectors) if vectors else empty,
            positions=self._step_positions(inputs) if has_positions else None,
            encodings=torch.cat([self._encodings[key] for key in begun]) if begun else None,
            spans=tuple(spans),
            watch=watch,
        )

    def _step_positions(self, inputs: StepInputs) -> torch.Tensor:
        """Return the step's positions in three directions. Shapes: [3, T]"""
        told = torch.from_numpy(inputs.told_positions).repeat(3, 1)
        for step, first in zip(inputs.steps, inputs.query_start.tolist(), strict=False):
            table = self._positions.get(step.row)
            if table is not None and step.start < table.shape[1]:
                part = table[:, step.start : step.start + step.num_tokens]
                told[:, first : first + part.shape[1]] = part
        return told.to(self._device)

    def _encode(self, kind: str, contents: Sequence[Encode]) -> None:
        """Make encodings, each alone where they cannot be made together. One that fails ends its
        request: by its reason on the last stage, which tells results, else by NaN. Mutates: self"""
        try:
            self._keep(contents, self._made(kind, contents))
        except Exception as error:  # what one client has sent ends no other request
            logger.warning("media could not be encoded: %s: %s", type(error).__name__, error)
            if len(contents) > 1:
                for content in contents:
                    self._encode(kind, [content])
                return
            (content,) = contents
            self._failures[content.key] = f"the {kind} could not be encoded: {error}"
            shape = content.num_rows, self._size
            self._encodings[content.key] = torch.full(
                shape, self._failed, dtype=self._dtype, device=self._device
            )

    def _encode_in_shares(self, kind: str, contents: Sequence[Encode]) -> None:
        """Make encodings of which each rank makes some, the largest one first each by the rank with
        the least to do, and gives them to the others. Mutates: self"""
        group, loads = self._group, [0] * self._group.size
        owners = {}
        for content in sorted(contents, key=lambda one: -one.num_rows):
            owners[content.key] = loads.index(min(loads))
            loads[owners[content.key]] += content.num_rows
        for content in contents:
            if owners[content.key] == group.rank:
                self._encode(kind, [content])
        for content in contents:  # on all ranks in the same order
            owner = owners[content.key]
            is_mine = owner == group.rank
            own = self._encodings[content.key] if is_mine else None
            facts = torch.zeros(2, dtype=torch.int64, device=self._device)
            if own is not None:
                facts[0], facts[1] = own.shape[1], content.key in self._failures
            width, has_failed = group.joined().broadcast(facts, owner).tolist()
            if own is None:
                own = torch.empty(content.num_rows, width, dtype=self._dtype, device=self._device)
            self._encodings[content.key] = group.joined().broadcast(own.contiguous(), owner)
            if has_failed and not is_mine:
                self._failures[content.key] = f"rank {owner} could not encode the {kind}"

    def _made(self, kind: str, contents: Sequence[Encode]) -> Sequence[torch.Tensor]:
        features = [
            {feature.name: tensor_of(feature).to(self._device) for feature in content.features}
            for content in contents
        ]
        if kind == VECTORS:
            return [next(iter(one.values())) for one in features]
        kept = [one.pop(KEPT, None) for one in features]
        made = self._model.encode(kind, features)
        pairs = zip(made, kept, strict=True)
        return [vectors if rows is None else vectors[rows] for vectors, rows in pairs]

    def _keep(self, contents: Sequence[Encode], made: Sequence[torch.Tensor]) -> None:
        """Keep encodings under their keys. Raises: ValueError. Mutates: self"""
        for content, vectors in zip(contents, made, strict=True):
            if len(vectors) != content.num_rows:
                raise ValueError(
                    f"it has {len(vectors)} vectors and the prompt room for {content.num_rows}"
                )
            self._encodings[content.key] = vectors.to(self._device, self._dtype)


def _met(place: PartPlace, start: int, end: int) -> list[tuple[int, range]]:
    """Return (first position, rows of the encoding) of what a part has between two positions."""
    found, row = [], 0
    for first, count in place.runs:
        low, high = max(first, start), min(first + count, end)
        if low < high:
            found.append((low, range(row + low - first, row + high - first)))
        row += count
    return found


def _joined(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return vectors one after another; shorter ones are as if the rest of them were zeros."""
    width = max(one.shape[1] for one in vectors)
    return torch.cat([F.pad(one, (0, width - one.shape[1])) for one in vectors])
