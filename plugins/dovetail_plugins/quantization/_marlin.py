"""Marlin's layouts of a layer: tiles of 16 inputs by 64 outputs, ordered as tensor cores read them.

A warp of 32 threads multiplies a tile, which is four subtiles of 16 x 16. Of an instruction's
second operand (mma.m16n8k16, column by thread / 4) a thread holds inputs 2 q, 2 q + 1, 2 q + 8 and
2 q + 9, q = thread mod 4, for each of two columns; so of a subtile it holds 8 values, which make
one int32 of 4-bit values or two of 8-bit ones, even values before odd ones. Values are unsigned and
mean value - 8 (or 128) times the scale. Tensors: `B` int32 [I / 16, O * bits / 2], `s` [I / G, O].
Sparse (2:4) weights store two of four inputs, so tiles are of 32 inputs; `B_meta` int16
[I / 32, 2 O] has two bits for the position of every stored value, in the order of CUTLASS's sparse
operands. There the two operands change places: a thread's columns of a subtile's rows are outputs.
Sources: Frantar et al., MARLIN, 2024 (https://arxiv.org/abs/2408.11743), section 3;
https://docs.nvidia.com/cuda/parallel-thread-execution (mma.m16n8k16 fragments); the packing of
https://github.com/IST-DASLab/Sparse-Marlin. Shape letters: N outputs, K stored inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.quantization import LinearSpec, StoredTensor
from dovetail_kernels.gemm.weight import POINTS_GROUP, Weight
from dovetail_plugins.quantization._float_formats import half_if_exact
from dovetail_plugins.quantization._grouped import grouped_weight
from dovetail_plugins.quantization._int32 import unpack

TILE_INPUTS, TILE_OUTPUTS, THREADS = 16, 64, 32
SINGLE_SCALES = (0, 1, 8, 9, 16, 17, 24, 25)
SPARSE_SCALES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarlinLayout:
    """A layer in dense tiles. `is_grouped`: its scales are in the order of several groups, although
    a rank may hold one of them. `names`: the tensors of the values and their scales."""

    bits: int
    group: int
    where: str
    is_grouped: bool
    names: tuple[str, ...] = ("B", "s")
    kept_inputs: ClassVar[int] = 1
    allowed_bits: ClassVar[tuple[int, ...]] = (4,)

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the values and their scales. Raises: ConfigError for sizes tiles cannot hold."""
        self._check(spec)
        groups = spec.num_groups(self.group)
        inputs = spec.in_size // (self.kept_inputs * TILE_INPUTS)
        shape = (inputs, spec.out_size * self.bits // 2)
        return (
            StoredTensor(name=self.names[0], shape=shape, dtype="int32",
                         output_axis=1, input_axis=0),
            StoredTensor(name=self.names[1], shape=(groups, spec.out_size), dtype="float32",
                         output_axis=1, input_axis=0),
        )  # fmt: skip

    def _check(self, spec: LinearSpec) -> None:
        if self.bits not in self.allowed_bits:
            known = " or ".join(map(str, self.allowed_bits))
            raise ConfigError(
                f"{self.bits} bits in these tiles are not read; {known} are.", where=self.where
            )
        tile = self.kept_inputs * TILE_INPUTS
        if spec.in_size % tile or any(size % TILE_OUTPUTS for size in spec.out_sizes):
            raise ConfigError(
                f"{spec.name} has {spec.in_size} inputs and {spec.out_sizes} outputs, which do "
                f"not divide into tiles of {tile} by {TILE_OUTPUTS}.",
                where=self.where,
                fix="use fewer ranks, or a checkpoint of another method.",
            )

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix."""
        stored, scales = (tensors[name] for name in self.names[:2])
        order = _across(64, 8) if self.is_grouped else _single_order()
        return self._grouped(untiled(stored, self.bits, dense_places()), ordered(scales, order))

    def _grouped(self, values: torch.Tensor, scales: torch.Tensor) -> Weight:
        return grouped_weight(
            values,
            scales.T.contiguous(),
            torch.full_like(scales.T, 2 ** (self.bits - 1)),
            bits=self.bits,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseMarlinLayout(MarlinLayout):
    """A layer in tiles of the values that 2:4 sparse weights keep. A third name: their places."""

    names: tuple[str, ...] = ("B_24", "s", "B_meta")
    kept_inputs: ClassVar[int] = 2
    allowed_bits: ClassVar[tuple[int, ...]] = (4, 8)

    def tensors(self, spec: LinearSpec) -> tuple[StoredTensor, ...]:
        """Return the values, their scales and their places."""
        shape = (spec.in_size // 32, spec.out_size * 2)
        places = StoredTensor(name=self.names[2], shape=shape, dtype="int16",
                              output_axis=1, input_axis=0)  # fmt: skip
        return (*MarlinLayout.tensors(self, spec), places)

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """Return the matrix: two values and their places among four inputs are a vector's code; of
        8 bits, dense."""
        stored, scales, places = (tensors[name] for name in self.names)
        if self.is_grouped:
            scales = ordered(scales, torch.tensor(SPARSE_SCALES))
        values, which = untiled(stored, self.bits, sparse_places()), kept_inputs(places)
        group = 2 * values.shape[1] // len(scales)
        if self.bits != 4 or group % POINTS_GROUP:
            return self._grouped(filled(values, which, 2 ** (self.bits - 1)), scales)
        (narrow,) = half_if_exact(scales.T.float())
        return Weight(
            format="vectors",
            values=pair_codes(values, which),
            points=pair_points(),
            scales=narrow.contiguous(),
            group=group,
        )


def dense_places() -> torch.Tensor:
    """Return the position in a tile [16 x 64] of each of its stored values. Shapes: -> [1024]"""
    thread, subtile, column, row = _thread_places()
    return (row * TILE_OUTPUTS + 16 * subtile + 8 * column + thread // 4).flatten()


def sparse_places() -> torch.Tensor:
    """Return the places for tiles of sparse weights. Shapes: -> [1024]"""
    thread, subtile, column, row = _thread_places()
    return (row * TILE_OUTPUTS + 8 * (thread // 4) + 4 * column + subtile).flatten()


def _thread_places() -> tuple[torch.Tensor, ...]:
    """Return thread, subtile, column and input of the values in the order in which threads hold
    them. Shapes: -> four that broadcast to [32, 4, 2, 4]"""
    thread = torch.arange(THREADS).view(THREADS, 1, 1, 1)
    subtile = torch.arange(4).view(1, 4, 1, 1)
    column = torch.arange(2).view(1, 1, 2, 1)
    row = 2 * (thread % 4) + torch.tensor([0, 1, 8, 9]).view(1, 1, 1, 4)
    return torch.broadcast_tensors(thread, subtile, column, row)


def untiled(words: torch.Tensor, bits: int, places: torch.Tensor) -> torch.Tensor:
    """Return the values of all tiles as a matrix.

    Shapes: words int32 [K / 16, N * bits / 2], places [1024] -> [N, K] uint8
    """
    rows = len(words)
    values = unpack(words, bits, axis=1)
    count = 32 // bits
    values = values.view(-1, count)[:, _even_first(count).argsort()].reshape(rows, -1, len(places))
    tiles = torch.empty_like(values)
    tiles[..., places] = values
    tiles = tiles.view(rows, -1, TILE_INPUTS, TILE_OUTPUTS)
    return tiles.permute(1, 3, 0, 2).reshape(-1, rows * TILE_INPUTS)


def _even_first(count: int) -> torch.Tensor:
    """Return which value is at each place of a word: 0, 2, .. then 1, 3, .."""
    return torch.arange(count).view(-1, 2).T.flatten()


def ordered(scales: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return scales in the order of outputs; `order` is the output at each place of a run.
    Shapes: scales [groups, N], order [n] -> [groups, N]"""
    runs = scales.reshape(len(scales), -1, len(order))
    return runs[..., order.argsort()].view(scales.shape)


def _across(size: int, columns: int) -> torch.Tensor:
    """Return the order of a run of `size` that is written down the columns."""
    return torch.arange(size).view(-1, columns).T.flatten()


def _single_order() -> torch.Tensor:
    """Return the order within 32 scales if there is one group."""
    return torch.cat([2 * i + torch.tensor(SINGLE_SCALES) for i in range(4)])


def kept_inputs(places: torch.Tensor) -> torch.Tensor:
    """Return which of its four inputs every stored value is.

    CUTLASS groups 16-bit words of four pairs from two neighbouring columns of words; within 64 rows
    the rows are reordered, and in each block of 2 x 2 the off-diagonal words are swapped.
    Shapes: places int16 [I / 32, 2 N] -> [N, I / 2] int64
    """
    rows, columns = places.shape[1] // 2, places.shape[0] * 2
    row = torch.arange(rows).unsqueeze(1)
    column = torch.arange(columns)
    moved = row // 64 * 64 + row % 4 // 2 * 32 + row % 64 // 8 * 4 + row % 2 * 2 + row % 8 // 4
    swapped = (moved % 2 != column % 2).long()
    from_row = moved + swapped * (column % 2 - moved % 2)
    from_column = column + swapped * (moved % 2 - column % 2)
    words = places.reshape(columns // 2, rows, 2)[from_column // 2, from_row, from_column % 2]
    return ((words.unsqueeze(2).long() >> torch.arange(0, 16, 2)) & 3).reshape(rows, -1)


def pair_codes(codes: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """Return two values of 4 bits and their places as one number. Shapes: [N, I / 2] -> [N, I / 4]
    int16"""
    values, places = (t.int().unflatten(1, (-1, 2)) for t in (codes, which))
    pair = values[..., 0] | values[..., 1] << 4 | places[..., 0] << 8 | places[..., 1] << 10
    return pair.to(torch.int16)


@cache
def pair_points() -> torch.Tensor:
    """Return the four values that each such code represents. Shapes: [1, 4096, 4] int8"""
    code = torch.arange(1 << 12).unsqueeze(1)
    points = torch.zeros(len(code), 4, dtype=torch.int8)
    for number in range(2):
        value = (code >> 4 * number & 15) - 8
        points.scatter_(1, code >> 8 + 2 * number & 3, value.to(torch.int8))
    return points.unsqueeze(0)


def filled(codes: torch.Tensor, which: torch.Tensor, zero: int) -> torch.Tensor:
    """Return all four inputs of every two stored ones, the others `zero`.

    Shapes: codes uint8 and which [N, I / 2] -> [N, I]
    """
    full = torch.full((len(codes), codes.shape[1] // 2, 4), zero, dtype=torch.uint8)
    full.scatter_(2, which.view(len(codes), -1, 2), codes.view(len(codes), -1, 2))
    return full.view(len(codes), -1)
