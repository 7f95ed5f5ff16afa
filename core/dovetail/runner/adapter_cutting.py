"""Cutting: what an adapter changes of one matrix, put side by side and cut for a rank.

Low-rank matrices, which are most of an adapter, are only noted (Copies) and copied together.
Shape letters: P parts fused along the output, R rank, I input, O output features of this rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterContent, ModuleChange
from dovetail.interfaces.quantization import LinearSpec
from dovetail.layers.adapters import SlotWeights
from dovetail.layers.joints import Joint, outputs_in
from dovetail.layers.placement import Part
from dovetail.parallel.groups import Group
from dovetail.runner.adapter_files import FileCopies
from dovetail_kernels.op import REFERENCE
from dovetail_kernels.scaled_copy import NATIVE, OP
from dovetail_kernels.scaled_copy.native import ScaledCopies

LINE_BYTES = 64
"""Matrices start on a line of the cache."""
OF_OUTPUTS = ("up", "magnitude", "output_scale", "shift", "weight", "bias")
"""The tensors of a change whose first axis are the layer's outputs."""


class Room:
    """Memory for the matrices of one adapter: one piece, where `size` numbers are enough."""

    def __init__(self, dtype: torch.dtype, size: int) -> None:
        self._dtype = dtype
        self._least = size
        self._piece, self._held, self._taken = torch.empty(0, dtype=dtype), 0, 0

    def take(self, shape: tuple[int, ...], *, is_filled: bool) -> torch.Tensor:
        """Return a tensor in it, of zeros unless all of it `is_filled` later. Mutates: self"""
        size = math.prod(shape)
        self._taken += -self._taken % (LINE_BYTES // self._dtype.itemsize)
        if self._taken + size > self._held:
            self._held, self._taken = max(size, self._least), 0
            self._piece = torch.empty(self._held, dtype=self._dtype)
        taken = self._piece.as_strided(shape, strides_of(shape), self._taken)
        self._taken += size
        return taken if is_filled else taken.zero_()


def strides_of(shape: Sequence[int]) -> list[int]:
    """Return the strides of a tensor whose numbers lie one behind the other."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def room_of(changes: Iterable[ModuleChange], dtype: torch.dtype) -> Room:
    """Return room for the low-rank matrices of some changes, if none is padded."""
    pairs = [(c.down, c.up) for c in changes if c.down is not None and c.up is not None]
    lines = 2 * len(pairs) * LINE_BYTES // dtype.itemsize
    return Room(dtype, lines + sum(down.numel() + up.numel() for down, up in pairs))


class Copies:
    """Matrices to be scaled and copied in one go, which also sees that they are finite. `room` is
    where they go, of one type; `content` the file that they are views of, if it has not been read:
    what looks at numbers says so before."""

    def __init__(self, room: Room, content: AdapterContent | None = None) -> None:
        self.room = room
        self._content = content
        self.sources: list[torch.Tensor] = []
        self.targets: list[torch.Tensor] = []
        self.scales: list[float] = []
        self._where: list[str] = []
        self.prepared: FileCopies | None = None
        """The native library's copies out of the content, once it has carried them out."""

    def add(self, where: str, source: torch.Tensor, target: torch.Tensor, scale: float) -> None:
        """Note a copy. Shapes: source, target [A, B]. Mutates: self"""
        self.sources.append(source)
        self.targets.append(target)
        self.scales.append(scale)
        self._where.append(where)

    def look_at_numbers(self) -> None:
        """Have the numbers of all tensors there. Raises: ConfigError. Mutates: the content"""
        if self._content is not None:
            self._content.read()

    def carry_out(self) -> str | None:
        """Copy all; return where the first is from whose numbers are not finite in the type that
        they are kept in. Raises: ConfigError. Mutates: the targets, the content"""
        given = {"sources": self.sources, "targets": self.targets}
        dtype = self.targets[0].dtype if self.targets else torch.float32
        if OP.runs(NATIVE.name, "cpu", dtype) and OP.why_not(NATIVE.name, given) is None:
            told = ScaledCopies(self.sources, self.targets, self.scales)
            if self._content is not None:
                self.prepared = FileCopies.of(told, self._content)
            if self.prepared is not None and self._content is not None:
                broken = self.prepared.carry_out(self._content)
            else:
                self.look_at_numbers()
                broken = told()
        else:
            self.look_at_numbers()
            broken = int(OP.pick("cpu", dtype, name=REFERENCE)(**given, scales=self.scales))
        return None if broken < 0 else self._where[broken]


class Divided(Protocol):
    """A matrix divided over the ranks of a group, as a Linear is, or one of an expert."""

    @property
    def parts(self) -> tuple[Part, ...]: ...
    @property
    def spec(self) -> LinearSpec: ...
    @property
    def group(self) -> Group: ...
    @property
    def full_in_size(self) -> int: ...
    @property
    def is_input_split(self) -> bool: ...
    @property
    def joints(self) -> Mapping[str, Joint]: ...


class Cutting:
    """The changes of one linear layer's parts, put side by side and cut for this rank."""

    def __init__(self, where: str, layer: Divided, dtype: torch.dtype, copies: Copies) -> None:
        self._where = where
        self._layer = layer
        self._dtype = dtype
        self._copies = copies

    def cut(self, parts: Mapping[str | None, ModuleChange]) -> SlotWeights:
        """Return the layer's change; `parts` are by the name of the fused matrix or of a joint of
        several, None for all of them behind each other. Its low-rank matrices are there once the
        copies are carried out. Raises: ConfigError. Mutates: the copies"""
        parts = self._apart(parts)
        unknown = set(parts) - {None, *(part.name for part in self._layer.parts)}
        if unknown:
            raise ConfigError(
                f"it changes the part {unknown.pop()!r}, which the layer does not have.",
                where=self._where,
                fix="use an adapter that was trained for this model.",
            )
        changes = [self._of_part(parts, i) for i in range(len(self._layer.parts))]
        if all(change.is_low_rank for change, _ in changes):
            down, up = self._pair(changes, None)
            return SlotWeights(down=down, up=up)
        inputs = self._input_scales([c.input_scale for c, _ in changes])
        down, up = self._pair(changes, inputs)
        return SlotWeights(
            down=down,
            up=up,
            magnitude=self._vectors([(c.magnitude, o) for c, o in changes], None),
            output_scale=self._vectors([(c.output_scale, o) for c, o in changes], 1.0),
            shift=self._vectors([(c.shift, o) for c, o in changes], 0.0),
            bias=self._vectors([(c.bias, o) for c, o in changes], None),
            input_scale=inputs,
            weight=self._whole(changes),
        )

    def _apart(self, parts: Mapping[str | None, ModuleChange]) -> Mapping[str | None, ModuleChange]:
        """Return the parts with those of joints apart. Raises: ConfigError"""
        if not self._layer.joints:
            return parts
        found: dict[str | None, ModuleChange] = {}
        for name, change in parts.items():
            joint = None if name is None else self._layer.joints.get(name)
            if joint is None:
                found[name] = change
            else:
                found.update(self._parts_of(change, joint))
        return found

    def _parts_of(self, change: ModuleChange, joint: Joint) -> dict[str, ModuleChange]:
        """Return the change of each part of a joint. Raises: ConfigError"""
        outputs = outputs_in(self._layer.parts, joint)
        full = sum(map(len, outputs.values()))
        given = {name: getattr(change, name) for name in OF_OUTPUTS}
        given = {name: tensor for name, tensor in given.items() if tensor is not None}
        for tensor in given.values():
            if tensor.shape[0] != full:
                raise self._misfit(f"{tensor.shape[0]} outputs", full)
        self._copies.look_at_numbers()
        return {
            part: replace(change, **{name: tensor[rows] for name, tensor in given.items()})
            for part, rows in outputs.items()
        }

    def _of_part(
        self, parts: Mapping[str | None, ModuleChange], number: int
    ) -> tuple[ModuleChange, int]:
        """Return a part's change, and the row of the change's outputs where the part begins."""
        own = self._layer.parts
        if own[number].name in parts:
            return parts[own[number].name], 0
        return parts.get(None, ModuleChange()), sum(p.full for p in own[:number])

    def _rows(self, tensor: torch.Tensor, number: int, offset: int) -> torch.Tensor:
        """Return this rank's outputs of a part, zeros where its share is padded."""
        part = self._layer.parts[number]
        full = sum(p.full for p in self._layer.parts) if offset or number == 0 else part.full
        if tensor.shape[0] not in (part.full, full):
            raise self._misfit(f"{tensor.shape[0]} outputs", part.full)
        start, count = offset + part.start, part.held
        is_whole = start == 0 and count == tensor.shape[0]
        held = tensor if is_whole else tensor.narrow(0, start, count)
        if count == part.local:
            return held
        self._copies.look_at_numbers()
        padding = held.new_zeros(part.local - count, *held.shape[1:])
        return torch.cat([held, padding])

    def _cut_inputs(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        layer = self._layer
        if tensor.shape[axis] != layer.full_in_size:
            raise self._misfit(f"{tensor.shape[axis]} inputs", layer.full_in_size)
        if not layer.is_input_split:
            return tensor
        return tensor.narrow(axis, layer.group.rank * layer.spec.in_size, layer.spec.in_size)

    def _input_scales(self, given: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """Return a scale of the inputs for each part, ones where it has none. Shapes: [P, I]"""
        if all(one is None for one in given):
            return None
        ones = torch.ones(self._layer.spec.in_size)
        cut = [ones if s is None else self._cut_inputs(s.flatten().float(), 0) for s in given]
        return torch.stack(cut)

    def _pair(
        self, changes: Sequence[tuple[ModuleChange, int]], inputs: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the low-rank matrices of all parts, of the largest rank among them, `down`
        multiplied by the scales of the inputs. Shapes: inputs [P, I]. Mutates: the copies"""
        ranks = [0 if c.down is None else c.down.shape[0] for c, _ in changes]
        if not any(ranks):
            return None, None
        spec, most = self._layer.spec, max(ranks)
        room, is_filled, out_size = self._copies.room, min(ranks) == most, spec.out_size
        down = room.take((len(changes), most, spec.in_size), is_filled=is_filled)
        up = room.take((most, out_size), is_filled=is_filled)
        column = 0
        for number, (change, offset) in enumerate(changes):
            size = spec.out_sizes[number]
            if change.down is not None and change.up is not None:
                own = self._cut_inputs(change.down, 1)
                if inputs is not None:
                    own = own.float() * inputs[number]
                rank, first = ranks[number], up.storage_offset() + column
                target = down[number] if is_filled else down[number, :rank]
                self._copies.add(self._where, own, target, change.scale)
                own = self._rows(change.up, number, offset)
                turned = up.as_strided((size, rank), (1, out_size), first)
                self._copies.add(self._where, own, turned, 1.0)
            column += size
        return down, up

    def _vectors(
        self, given: Iterable[tuple[torch.Tensor | None, int]], default: float | None
    ) -> torch.Tensor | None:
        """Return one vector over all outputs; where only some parts have one, `default` fills the
        others. Raises: ConfigError without a default"""
        vectors = list(given)
        if all(vector is None for vector, _ in vectors):
            return None
        filled = []
        for number, (vector, offset) in enumerate(vectors):
            size = self._layer.spec.out_sizes[number]
            if vector is not None:
                filled.append(self._rows(vector.flatten().float(), number, offset))
            elif default is not None:
                filled.append(torch.full((size,), default))
            else:
                raise ConfigError(
                    "some of the matrices that are one here have a magnitude or a bias, and "
                    "others do not.",
                    where=self._where,
                )
        return torch.cat(filled)

    def _whole(self, changes: Sequence[tuple[ModuleChange, int]]) -> torch.Tensor | None:
        """Return the matrix in place of the layer's. Raises: ConfigError"""
        given = [(number, c.weight, offset) for number, (c, offset) in enumerate(changes)]
        if all(weight is None for _, weight, _ in given):
            return None
        if any(weight is None for _, weight, _ in given):
            raise ConfigError(
                "some of the matrices that are one here are saved whole, and others are not.",
                where=self._where,
            )
        rows = [self._rows(w, n, offset) for n, w, offset in given if w is not None]
        return self._cut_inputs(torch.cat(rows), 1).to(self._dtype).contiguous()

    def _misfit(self, has: str, wanted: int) -> ConfigError:
        return ConfigError(
            f"it has {has} and the layer {wanted}.",
            where=self._where,
            fix="use an adapter that was trained for this model.",
        )
