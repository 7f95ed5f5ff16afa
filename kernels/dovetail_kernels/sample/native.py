"""Sampling on the native CPU library: tables of all rows, one call a step.

The tables are numpy arrays with one entry per row number; the argument struct points to them once
and for all, so that a step sets four numbers and goes.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch

from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import Library, needed_library
from dovetail_kernels.op import Arguments
from dovetail_kernels.sample.definition import MAX_VOCAB

MAX_TOP = 256
"""The most likely tokens that the kernels list per row."""

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class SampleArgs(ctypes.Structure):
    """See args.h; the tables come first."""

    _fields_ = [
        ("inverse_temperature", _pointer),
        ("top_k", _pointer),
        ("top_p", _pointer),
        ("least", _pointer),
        ("repetition", _pointer),
        ("frequency", _pointer),
        ("presence", _pointer),
        ("seen_ids", _pointer),
        ("seen_counts", _pointer),
        ("num_seen", _pointer),
        ("seed", _pointer),
        ("num_top", _pointer),
        ("logits", _pointer),
        ("rows", _pointer),
        ("positions", _pointer),
        ("tokens", _pointer),
        ("best", _pointer),
        ("raw_best", _pointer),
        ("logprob", _pointer),
        ("rank", _pointer),
        ("top_ids", _pointer),
        ("top_logprobs", _pointer),
        ("top_stride", _int64),
        ("count", _int64),
        ("vocab", _int64),
        ("skips_logprobs", _int32),
        ("reserved", _int32),
    ]


class LogprobArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("logits", _pointer),
        ("tokens", _pointer),
        ("num_top", _pointer),
        ("logprob", _pointer),
        ("rank", _pointer),
        ("top_ids", _pointer),
        ("top_logprobs", _pointer),
        ("top_stride", _int64),
        ("count", _int64),
        ("vocab", _int64),
    ]


class Tables:
    """The sampling settings by row number. A row that was never filled is greedy without any
    filter.

    `least` is the logarithm of min-p (-inf: off); `num_seen` -1 means no penalties, else
    `seen_ids` and `seen_counts` hold the addresses of int32 and float32 arrays with room for one
    entry more than `num_seen`; `num_top` -1 means no logprobs.
    """

    def __init__(self, max_rows: int) -> None:
        self.inverse_temperature = np.zeros(max_rows, dtype=np.float32)
        self.top_k = np.zeros(max_rows, dtype=np.int64)
        self.top_p = np.ones(max_rows, dtype=np.float64)
        self.least = np.full(max_rows, -np.inf, dtype=np.float32)
        self.repetition = np.ones(max_rows, dtype=np.float32)
        self.frequency = np.zeros(max_rows, dtype=np.float32)
        self.presence = np.zeros(max_rows, dtype=np.float32)
        self.seen_ids = np.zeros(max_rows, dtype=np.uint64)
        self.seen_counts = np.zeros(max_rows, dtype=np.uint64)
        self.num_seen = np.full(max_rows, -1, dtype=np.int64)
        self.seed = np.zeros(max_rows, dtype=np.uint64)
        self.num_top = np.full(max_rows, -1, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Logprobs of tokens, their ranks, and the most likely tokens. Shapes: [S], [S], [S, n] twice

    For a row that requested fewer than n tokens, only the first entries count.
    """

    logprob: np.ndarray
    rank: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray


class NativeSampler:
    """Draws for lines of logits, each of a row of the tables; without penalties several may be of
    one row. The results are overwritten by each call."""

    def __init__(self, tables: Tables, source: Library | None = None) -> None:
        native = source or needed_library()
        self.tables = tables
        self._kernel = native.kernel("sample", SampleArgs)
        self._args = SampleArgs()
        for name, table in vars(tables).items():
            setattr(self._args, name, table.ctypes.data)
        self._reference = ctypes.byref(self._args)
        self._make_lines(len(tables.seed), 0)

    def __call__(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        positions: np.ndarray,
        *,
        logprobs_top: int | None = None,
    ) -> Logprobs | None:
        """Fill the first S entries of tokens, best and raw_best.

        `best` is the largest logit after penalties, `raw_best` before them if `best` is not finite;
        such a row's token is 0. `logprobs_top` None leaves logprobs out; otherwise it is the
        largest `num_top` of the rows, at most MAX_TOP and V.
        Shapes: logits [S, V] float32 contiguous, restored after use; rows, positions [S] int64
        Mutates: self; tables: what was drawn is recorded for rows with penalties
        """
        count = len(rows)
        assert logits.shape[0] == count, "one row of logits for each row"
        if count > len(self.tokens):
            self._make_lines(count, self._logprobs.top_ids.shape[1])
        self._rows[:count] = rows
        self._positions[:count] = positions
        args = self._args
        args.logits, args.count, args.vocab = logits.data_ptr(), count, logits.shape[1]
        args.skips_logprobs = logprobs_top is None
        if logprobs_top is not None and logprobs_top > self._logprobs.top_ids.shape[1]:
            self._give_room(len(self.tokens), logprobs_top)
        if self._kernel(self._reference):
            raise MemoryError(f"no memory to sample from {logits.shape[1]} tokens")
        return None if logprobs_top is None else self._logprobs

    @property
    def logprobs(self) -> Logprobs:
        """Return the arrays to which calls write logprobs, until one needs more lines or tokens."""
        return self._logprobs

    def _make_lines(self, count: int, num_top: int) -> None:
        """Allocate room for `count` lines. Mutates: self"""
        self.tokens = np.zeros(count, dtype=np.int64)
        self.best = np.zeros(count, dtype=np.float32)
        self.raw_best = np.zeros(count, dtype=np.float32)
        self._rows = np.zeros(count, dtype=np.int64)
        self._positions = np.zeros(count, dtype=np.int64)
        args = self._args
        args.rows, args.positions = self._rows.ctypes.data, self._positions.ctypes.data
        args.tokens, args.best = self.tokens.ctypes.data, self.best.ctypes.data
        args.raw_best = self.raw_best.ctypes.data
        self._give_room(count, num_top)

    def _give_room(self, max_rows: int, num_top: int) -> None:
        """Make room for logprobs. Mutates: self"""
        self._logprobs = logprobs = _room_for_logprobs(max_rows, num_top)
        _point_to(self._args, logprobs)


def logprobs_of(
    logits: torch.Tensor, tokens: np.ndarray, num_top: np.ndarray, source: Library | None = None
) -> Logprobs:
    """Return the logprobs of given tokens.

    Shapes: logits [S, V] float32 contiguous with finite maxima; tokens [S] int64, num_top [S] int64
    from 0 to the smaller of V and MAX_TOP
    """
    native = source or needed_library()
    assert logits.shape[0] == len(tokens) == len(num_top), "one row of logits for each token"
    logprobs = _room_for_logprobs(len(tokens), int(num_top.max(initial=0)))
    args = LogprobArgs(
        logits=logits.data_ptr(),
        tokens=tokens.ctypes.data,
        num_top=num_top.ctypes.data,
        count=len(tokens),
        vocab=logits.shape[1],
    )
    _point_to(args, logprobs)
    if native.kernel("sample_logprobs", LogprobArgs)(ctypes.byref(args)):
        raise MemoryError(f"no memory for logprobs of {logits.shape[1]} tokens")
    return logprobs


def can_sample(logits: torch.Tensor) -> bool:
    """Return whether the kernels take these logits: on the CPU, float32, not too wide."""
    return (
        logits.device.type == "cpu"
        and logits.dtype == torch.float32
        and logits.shape[1] <= MAX_VOCAB
        and logits.is_contiguous()
    )


def _room_for_logprobs(count: int, num_top: int) -> Logprobs:
    return Logprobs(
        logprob=np.zeros(count, dtype=np.float64),
        rank=np.zeros(count, dtype=np.int64),
        top_ids=np.zeros((count, num_top), dtype=np.int64),
        top_logprobs=np.zeros((count, num_top), dtype=np.float64),
    )


def _point_to(args: SampleArgs | LogprobArgs, logprobs: Logprobs) -> None:
    """Let the results be written into `logprobs`. Mutates: args"""
    args.logprob, args.rank = logprobs.logprob.ctypes.data, logprobs.rank.ctypes.data
    args.top_ids, args.top_logprobs = (
        logprobs.top_ids.ctypes.data,
        logprobs.top_logprobs.ctypes.data,
    )
    args.top_stride = logprobs.top_ids.shape[1]


def _prepare(arguments: Arguments) -> Arguments:
    """Return the arguments with the tables filled, row i of the logits being row i."""
    tables = Tables(len(arguments["logits"]))
    tables.inverse_temperature[:] = arguments["inverse_temperature"].numpy()
    tables.top_k[:] = arguments["top_k"].numpy()
    tables.top_p[:] = arguments["top_p"].numpy()
    tables.least[:] = arguments["min_p"].log().numpy()
    tables.seed[:] = arguments["seed"].numpy().view(np.uint64)
    return {
        "logits": arguments["logits"],
        "sampler": NativeSampler(tables),
        "rows": np.arange(len(tables.seed)),
        "positions": arguments["position"].numpy(),
    }


def _sample(
    logits: torch.Tensor, sampler: NativeSampler, rows: np.ndarray, positions: np.ndarray
) -> torch.Tensor:
    """Return one token per row."""
    sampler(logits, rows, positions)
    return torch.from_numpy(sampler.tokens[: len(rows)].copy())


NATIVE = native_implementation(_sample, prepare=_prepare)
