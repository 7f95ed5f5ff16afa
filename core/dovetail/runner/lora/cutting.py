"""Cutting: an adapter's changes to one matrix, joined over its fused parts and sharded for a rank.

Low-rank matrices, the bulk of an adapter, are only noted (Copies) and copied together later. The
layer facts that this needs (Division) are the same for all adapters.
Shape letters: P parts fused along the output, R rank, I input, O output features of this rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import ModuleChange
from dovetail.interfaces.quantization import LinearSpec
from dovetail.layers.adapters.linear import KEPT, SlotWeights
from dovetail.layers.linear.joints import Joint, outputs_in
from dovetail.layers.linear.placement import Part
from dovetail.parallel.groups import Group
from dovetail.runner.lora.copies import Copies, MemorySlice

OF_OUTPUTS = ("up", "magnitude", "output_scale", "shift", "weight", "bias")
"""Tensors of a change whose first axis is the layer's outputs."""


NOTHING = ModuleChange()


class Divided(Protocol):
    """A matrix sharded over the ranks of a group: a Linear, or a matrix of an expert."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How a matrix is sharded. `held` are this rank's outputs of each part without padding;
    `before` the outputs before each part in the whole matrix, `columns` those in this rank's. This
    rank has `in_size` of `full_in_size` inputs, from `first_input` on."""

    parts: tuple[Part, ...]
    held: tuple[int, ...]
    names: frozenset[str | None]
    joints: Mapping[str, Joint]
    before: tuple[int, ...]
    full: int
    columns: tuple[int, ...]
    out_sizes: tuple[int, ...]
    out_size: int
    full_in_size: int
    in_size: int
    first_input: int

    @classmethod
    def of(cls, layer: Divided) -> Division:
        """Return how a layer is sharded."""
        spec, parts = layer.spec, layer.parts
        *before, full = accumulate((part.full for part in parts), initial=0)
        *columns, out_size = accumulate(spec.out_sizes, initial=0)
        return cls(
            parts=parts,
            held=tuple(part.held for part in parts),
            names=frozenset({None, *(part.name for part in parts)}),
            joints=layer.joints,
            before=tuple(before),
            full=full,
            columns=tuple(columns),
            out_sizes=spec.out_sizes,
            out_size=out_size,
            full_in_size=layer.full_in_size,
            in_size=spec.in_size,
            first_input=layer.group.rank * spec.in_size if layer.is_input_split else 0,
        )


class CutChange(NamedTuple):
    """What a layer stores of a change: the places of its low-rank matrices in the adapter's memory,
    and the `rest`, None for a plain low-rank sum. `down` and `up` are as in SlotWeights."""

    down: MemorySlice | None
    up: MemorySlice | None
    rest: SlotWeights | None = None

    @property
    def is_low_rank(self) -> bool:
        """Return whether the change is a low-rank sum and nothing else."""
        return self.rest is None or self.rest.is_low_rank

    def of(self, memory: torch.Tensor) -> SlotWeights:
        """Return the change with its matrices as views of the adapter's memory. Shapes: memory
        [numbers]"""
        down = None if self.down is None else self.down.of(memory)
        up = None if self.up is None else self.up.of(memory)
        if self.rest is None:
            return SlotWeights(down=down, up=up)
        return replace(self.rest, down=down, up=up)


class Cutting:
    """Joins the changes of one linear layer's parts and shards them for this rank."""

    def __init__(self, where: str, layer: Division, dtype: torch.dtype, copies: Copies) -> None:
        self._where = where
        self._layer = layer
        self._dtype = dtype
        self._copies = copies

    def cut(self, parts: Mapping[str | None, ModuleChange]) -> CutChange:
        """Return the layer's change. `parts` are keyed by the name of a fused matrix or of a joint
        of several, None for all of them concatenated. Its low-rank matrices are filled once the
        copies are carried out. Raises: ConfigError. Mutates: the copies"""
        layer, parts = self._layer, self._apart(parts)
        if not parts.keys() <= layer.names:
            unknown = next(name for name in parts if name not in layer.names)
            raise ConfigError(
                f"it changes the part {unknown!r}, which the layer does not have.",
                where=self._where,
                fix="use an adapter that was trained for this model.",
            )
        joined = parts.get(None, NOTHING)
        changes = [
            (parts[part.name], 0) if part.name in parts else (joined, start)
            for part, start in zip(layer.parts, layer.before, strict=True)
        ]
        if all(change.is_low_rank for change, _ in changes):
            down, up = self._pair(changes, None)
            return CutChange(down, up)
        inputs = self._input_scales([c.input_scale for c, _ in changes])
        down, up = self._pair(changes, inputs)
        rest = SlotWeights(
            magnitude=self._vectors([(c.magnitude, o) for c, o in changes], KEPT),
            output_scale=self._vectors([(c.output_scale, o) for c, o in changes], 1.0),
            shift=self._vectors([(c.shift, o) for c, o in changes], 0.0),
            bias=self._vectors([(c.bias, o) for c, o in changes], KEPT),
            input_scale=inputs,
            weight=self._whole(changes),
        )
        return CutChange(down=down, up=up, rest=rest)

    def _apart(self, parts: Mapping[str | None, ModuleChange]) -> Mapping[str | None, ModuleChange]:
        """Return the parts with joints split into single parts. Raises: ConfigError"""
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

    def _rows(self, tensor: torch.Tensor, number: int, offset: int) -> torch.Tensor:
        """Return this rank's outputs of a part, padded with zeros if its share is padded."""
        layer, part, found = self._layer, self._layer.parts[number], tensor.shape[0]
        is_joined = offset or number == 0
        if found != part.full and not (is_joined and found == layer.full):
            raise self._misfit(f"{found} outputs", part.full)
        start, count = offset + part.start, layer.held[number]
        rows = tensor if start == 0 and count == found else tensor.narrow(0, start, count)
        if count == part.local:
            return rows
        self._copies.look_at_numbers()
        padding = rows.new_zeros(part.local - count, *rows.shape[1:])
        return torch.cat([rows, padding])

    def _cut_inputs(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        layer, found = self._layer, tensor.shape[axis]
        if found != layer.full_in_size:
            raise self._misfit(f"{found} inputs", layer.full_in_size)
        if found == layer.in_size:
            return tensor
        return tensor.narrow(axis, layer.first_input, layer.in_size)

    def _input_scales(self, given: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """Return an input scale for each part, ones for parts without. Shapes: [P, I]"""
        if all(one is None for one in given):
            return None
        ones = torch.ones(self._layer.in_size)
        cut = [ones if s is None else self._cut_inputs(s.flatten().float(), 0) for s in given]
        return torch.stack(cut)

    def _pair(
        self, changes: Sequence[tuple[ModuleChange, int]], inputs: torch.Tensor | None
    ) -> tuple[MemorySlice | None, MemorySlice | None]:
        """Return the low-rank matrices of all parts, padded to the maximum rank, with `down`
        multiplied by the input scales. Shapes: inputs [P, I]. Mutates: the copies"""
        max_rank = max(0 if c.down is None else c.down.shape[0] for c, _ in changes)
        if not max_rank:
            return None, None
        layer, add, where = self._layer, self._copies.add, self._where
        in_size, out_size, of_part = layer.in_size, layer.out_size, max_rank * layer.in_size
        first_down = self._copies.take(len(changes) * of_part)
        first_up = self._copies.take(max_rank * out_size)
        for number, (change, offset) in enumerate(changes):
            if change.down is None or change.up is None:
                continue
            down, up = self._cut_inputs(change.down, 1), self._rows(change.up, number, offset)
            if up.shape[1] != down.shape[0]:
                raise self._misfit(f"a second matrix of rank {up.shape[1]}", down.shape[0])
            if inputs is not None:
                down = down.float() * inputs[number]
            add(where, down, first_down + number * of_part, (in_size, 1), change.scale)
            add(where, up, first_up + layer.columns[number], (1, out_size), 1.0)
        downs = MemorySlice((len(changes), max_rank, in_size), (of_part, in_size, 1), first_down)
        return downs, MemorySlice((max_rank, out_size), (out_size, 1), first_up)

    def _vectors(
        self, given: Iterable[tuple[torch.Tensor | None, int]], default: float
    ) -> torch.Tensor | None:
        """Return one vector over all outputs, or None if no part has one. Parts without a vector
        are filled with `default`. Raises: ConfigError"""
        vectors = list(given)
        if all(vector is None for vector, _ in vectors):
            return None
        filled = []
        for number, (vector, offset) in enumerate(vectors):
            size = self._layer.out_sizes[number]
            if vector is not None:
                filled.append(self._rows(vector.flatten().float(), number, offset))
            else:
                filled.append(torch.full((size,), default))
        return torch.cat(filled)

    def _whole(self, changes: Sequence[tuple[ModuleChange, int]]) -> torch.Tensor | None:
        """Return the matrix that replaces the layer's. Raises: ConfigError"""
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
