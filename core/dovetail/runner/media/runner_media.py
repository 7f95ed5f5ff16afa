"""RunnerMedia: the media encodings of a rank, and the parts of them that each step uses.

The model makes them from features when plans say so, in one step or in pieces over several. They
are stored by key until a plan drops them. Independent of file formats: features are tensors.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
import torch.nn.functional as F

from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.interfaces.data.media import KEPT, VECTORS, Encode, PartPlace, is_ready, tensor_of
from dovetail.interfaces.data.media_settings import IMAGE, VIDEO
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import NewRow, StepPlan
from dovetail.layers.context import StepMedia, use_media
from dovetail.layers.dtypes import dtype_of
from dovetail.parallel.groups import ALONE, tensor_group
from dovetail.registry.blame import described
from dovetail.runner.device import DeviceCalls
from dovetail.runner.load.loader import LoadedModel
from dovetail.runner.media.alignment import PromptAlignment
from dovetail.runner.media.encoder_pass import EncoderPass, pause_before
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import Ending, RunnerPart
from dovetail.runner.step.step_reader import BegunStep, Computed

logger = logging.getLogger(__name__)

SEEN = (IMAGE, VIDEO)
"""Kinds of media whose tokens may attend to each other in both directions."""


class RunnerMedia(RunnerPart):
    """The media of one rank's rows. `ending` reports rows whose media could not be encoded."""

    def __init__(
        self, run: RunSpec, device: torch.device, calls: DeviceCalls, ending: Ending
    ) -> None:
        self._run = run
        self._calls = calls
        self._ending = ending
        self._passes: dict[str, EncoderPass] = {}
        self._failed = 0.0 if run.rank.is_last_stage else float("nan")
        self._group = tensor_group(run.rank) if run.encoder_mode == "data" else ALONE
        self._size = run.model.hidden_size
        self._dtype = dtype_of(run.model.dtype)
        self._device = device
        self._prompts_see_all = facts_of(run.model.whole_config).prompts_see_all

    def attach(self, loaded: LoadedModel) -> None:
        """Encode with a model's encoders from now on. Mutates: self, the model"""
        self._model, self._module = loaded.model, loaded.module
        blocks = self._model.encoder_blocks() if self._model.takes_media else ()
        self._num_blocks = len(blocks)
        self._blocks_a_row: dict[str, float] = {}
        pause_before(blocks)

    def allocate(self, storage: Allocated) -> None:
        """Start without encodings and rows. Mutates: self"""
        self.close()
        self._batch = storage.batch
        self._alignment = PromptAlignment(self._run, self._module.modules(), self._device)
        self._encodings: dict[str, torch.Tensor] = {}
        self._failures: dict[str, str] = {}
        self._places: dict[int, tuple[PartPlace, ...]] = {}
        self._positions: dict[int, torch.Tensor] = {}
        self._prompt_tokens: dict[int, int] = {}

    def add_row(self, new: NewRow) -> None:
        """Note the media in a new row's prompt. Mutates: self, the batch's shifts"""
        self.free_row(new.row)
        if not new.parts:
            return
        self._alignment.add_row(new)
        self._places[new.row] = new.parts
        self._prompt_tokens[new.row] = new.num_prompt_tokens
        found = self._model.prompt_positions(new.num_prompt_tokens, new.parts)
        if found is not None:
            self._positions[new.row], self._batch.shifts[new.row] = found

    def free_row(self, row: int) -> None:
        """Forget a row. Mutates: self"""
        self._places.pop(row, None)
        self._positions.pop(row, None)
        self._prompt_tokens.pop(row, None)
        self._alignment.free_row(row)

    def follow(self, plan: StepPlan) -> None:
        """Drop and make encodings as a plan says. Mutates: self"""
        for key in plan.dropped_encodings:
            self._encodings.pop(key, None)
            self._failures.pop(key, None)
            if key in self._passes:
                self._passes.pop(key).drop()
        kinds: dict[str, list[Encode]] = {}
        for content in plan.encode:
            if content.share < 1 or content.key in self._passes:
                if self._model.takes_media:
                    self._go_on(content)
            elif is_ready(content.features):
                kinds.setdefault(VECTORS, []).append(content)
            elif self._model.takes_media:
                kinds.setdefault(content.kind, []).append(content)
        for kind, contents in kinds.items():
            if self._group.size > 1 and kind != VECTORS:
                self._encode_in_shares(kind, contents)
            else:
                self._encode(kind, contents)

    def _go_on(self, content: Encode) -> None:
        """Compute the next piece of a pass, and store the result after the last one. If each rank
        encodes whole items, only one rank does this. Mutates: self"""
        key, kind, is_last = content.key, content.kind, content.share == 1
        owner = zlib.crc32(key.encode()) % self._group.size
        if key not in self._passes:
            make = lambda: self._encoded(kind, [content])[0]  # noqa: E731
            self._passes[key] = EncoderPass(make, self._calls.queue())
        running = self._passes[key]
        if owner == self._group.rank:
            num_blocks = self._blocks_a_row.get(kind, 0) * content.num_rows or self._num_blocks
            running.advance(None if is_last else math.ceil(content.share * num_blocks))
        if not is_last:
            return
        del self._passes[key]
        if owner == self._group.rank:
            self._blocks_a_row[kind] = running.num_begun / content.num_rows
            try:
                self._keep([content], [running.result()])
            except Exception as error:  # one client's data must not end other requests
                self._fail(content, error)
        if self._group.size > 1:
            self._give(content, owner)

    def close(self) -> None:
        """Abort unfinished passes. May be called twice. Mutates: self"""
        while self._passes:
            self._passes.popitem()[1].drop()

    def begin(self, inputs: StepInputs) -> None:
        """Mark the rows of a step that must end: their media could not be encoded. Mutates: the
        ending"""
        found = {}
        for step in inputs.steps if self._failures else ():
            for place in self._places.get(step.row, ()):
                if place.key in self._failures:
                    found[step.row] = self._failures[place.key]
        for row, fault in found.items():
            self._ending.mark_failed(row, fault)

    def around(self, inputs: StepInputs) -> AbstractContextManager[None]:
        """Return a with block in which the model sees a step's media."""
        return use_media(self._of_step(inputs))

    def after(self, step: BegunStep, computed: Computed) -> None:
        """Add the alignments of prompts that end in a step. Mutates: step, self"""
        step.aligned = self._alignment.results(step.inputs)

    def _of_step(self, inputs: StepInputs) -> StepMedia | None:
        """Return a step's media, None if it has only tokens."""
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
                    if place.kind in SEEN and not is_one:
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
        watch = self._alignment.watch(inputs)
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
        """Return the step's positions in three dimensions. Shapes: [3, T]"""
        positions = torch.from_numpy(inputs.told_positions).repeat(3, 1)
        for step, first in zip(inputs.steps, inputs.query_start.tolist(), strict=False):
            table = self._positions.get(step.row)
            if table is not None and step.start < table.shape[1]:
                part = table[:, step.start : step.start + step.num_tokens]
                positions[:, first : first + part.shape[1]] = part
        return positions.to(self._device)

    def _encode(self, kind: str, contents: Sequence[Encode]) -> None:
        """Make encodings, one by one if making them together fails. Mutates: self"""
        try:
            self._keep(contents, self._encoded(kind, contents))
        except Exception as error:  # one client's data must not end other requests
            if len(contents) == 1:
                self._fail(contents[0], error)
                return
            for content in contents:
                self._encode(kind, [content])

    def _fail(self, content: Encode, error: Exception) -> None:
        """Fail the requests that show an item which cannot be encoded. The last stage, which
        reports results, stores the reason; other stages use NaN. Mutates: self"""
        logger.warning("media could not be encoded: %s", described(error))
        self._failures[content.key] = f"the {content.kind} could not be encoded: {error}"
        shape = content.num_rows, self._size
        self._encodings[content.key] = torch.full(
            shape, self._failed, dtype=self._dtype, device=self._device
        )

    def _encode_in_shares(self, kind: str, contents: Sequence[Encode]) -> None:
        """Divide encodings among the ranks, the largest first, each to the rank with the least
        work; each rank sends its own to the others. Mutates: self"""
        group, loads = self._group, [0] * self._group.size
        owners = {}
        for content in sorted(contents, key=lambda one: -one.num_rows):
            owners[content.key] = loads.index(min(loads))
            loads[owners[content.key]] += content.num_rows
        for content in contents:
            if owners[content.key] == group.rank:
                self._encode(kind, [content])
        for content in contents:  # in the same order on all ranks
            self._give(content, owners[content.key])

    def _give(self, content: Encode, owner: int) -> None:
        """Send an encoding from its owner to all ranks. Mutates: self"""
        is_mine = owner == self._group.rank
        own = self._encodings[content.key] if is_mine else None
        facts = torch.zeros(2, dtype=torch.int64, device=self._device)
        if own is not None:
            facts[0], facts[1] = own.shape[1], content.key in self._failures
        group = self._group.joined()
        width, has_failed = group.broadcast(facts, owner).tolist()
        if own is None:
            own = torch.empty(content.num_rows, width, dtype=self._dtype, device=self._device)
        self._encodings[content.key] = group.broadcast(own.contiguous(), owner)
        if has_failed and not is_mine:
            self._failures[content.key] = f"rank {owner} could not encode the {content.kind}"

    def _encoded(self, kind: str, contents: Sequence[Encode]) -> Sequence[torch.Tensor]:
        features = [
            {feature.name: tensor_of(feature).to(self._device) for feature in content.features}
            for content in contents
        ]
        if kind == VECTORS:
            return [next(iter(one.values())) for one in features]
        cells = [one.pop(KEPT, None) for one in features]
        encodings = self._model.encode(kind, features)
        pairs = zip(encodings, cells, strict=True)
        return [vectors if rows is None else vectors[rows] for vectors, rows in pairs]

    def _keep(self, contents: Sequence[Encode], encodings: Sequence[torch.Tensor]) -> None:
        """Store encodings by key. Raises: ValueError. Mutates: self"""
        for content, vectors in zip(contents, encodings, strict=True):
            if len(vectors) != content.num_rows:
                raise ValueError(
                    f"it has {len(vectors)} vectors and the prompt room for {content.num_rows}"
                )
            self._encodings[content.key] = vectors.to(self._device, self._dtype)


def _met(place: PartPlace, start: int, end: int) -> list[tuple[int, range]]:
    """Return (first position, encoding rows) for each run of a part between two positions."""
    found, row = [], 0
    for first, count in place.runs:
        low, high = max(first, start), min(first + count, end)
        if low < high:
            found.append((low, range(row + low - first, row + high - first)))
        row += count
    return found


def _joined(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return vectors concatenated; narrower ones are padded with zeros."""
    width = max(one.shape[1] for one in vectors)
    return torch.cat([F.pad(one, (0, width - one.shape[1])) for one in vectors])
