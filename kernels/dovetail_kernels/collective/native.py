"""Collectives on the native CPU library. One SharedMemoryRanks serves one thread at a time.

A call is a kernel with its state in memory, so a Program can record it.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch

from dovetail_kernels.collective.meeting import RankError, RankPlace, meet
from dovetail_kernels.cpu.library import Kernel, Library, needed_library

MAX_RANKS = 64
SLOTS = 4
HEADER_BYTES = 12288
"""Of the segment, before the slots; see args.h."""
PAGE_BYTES = 4096
DEFAULT_SPIN_US = 50
ONE_SHOT_BYTES = 1 << 15
"""Larger tensors are added up part by part; see cpu.cpp."""
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
CALLS = {
    1: "all_reduce",
    2: "reduce_scatter",
    3: "all_gather",
    4: "broadcast",
    5: "all_to_all",
    6: "send",
}
LATE, GONE, LEFT, DIFFERS = 1, 2, 3, 4
_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class RanksState(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("memory", _pointer),
        ("rank", _int64),
        ("size", _int64),
        ("slot_bytes", _int64),
        ("one_shot_bytes", _int64),
        ("timeout_ns", _int64),
        ("spin_ns", _int64),
        ("spin_now_ns", _int64),
        ("waits", _int64),
        ("own_tag", ctypes.c_uint64),
        ("other_tag", ctypes.c_uint64),
        ("published", ctypes.c_uint32),
        ("fault", _int32),
        ("fault_rank", _int32),
        ("pids", _int32 * MAX_RANKS),
        ("pidfds", _int32 * MAX_RANKS),
    ]


class CollectiveArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("ranks", _pointer),
        ("x", _pointer),
        ("out", _pointer),
        ("count", _int64),
        ("dtype", _int64),
    ]


class AllToAllArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("ranks", _pointer),
        ("pieces", _pointer),
        ("received", _pointer),
        ("piece_bytes", _pointer),
        ("received_bytes", _pointer),
        ("largest", _int64),
    ]


class SharedMemoryRanks:
    """The `size` ranks of one machine that meet under a name, seen from rank `rank`.

    All ranks make the same calls in the same order, on tensors of the same shape and dtype.
    `capacity_bytes` is the memory of a rank; larger tensors go through it in chunks. `timeout_s` is
    how long a rank waits for another in every call, `join_timeout_s` when they meet (None: as
    long); `spin_us` how long it does so awake at most (None: not at all when there are more ranks
    than processors).

    After an error the tensors of that call hold anything and the group is of no more use. Handlers
    of signals in Python run when a call has returned.

    Making one blocks until all ranks have come. Raises: OSError without the native library,
    RankError when ranks do not come
    """

    def __init__(
        self,
        name: str,
        *,
        rank: int,
        size: int,
        capacity_bytes: int = 1 << 20,
        timeout_s: float,
        join_timeout_s: float | None = None,
        spin_us: int | None = None,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        if not 0 <= rank < size <= MAX_RANKS:
            raise ValueError(f"rank {rank} of {size}: there can be 1 to {MAX_RANKS} ranks, from 0")
        self.rank, self.size = rank, size
        slot_bytes = -(-max(capacity_bytes // SLOTS, 64 * size) // PAGE_BYTES) * PAGE_BYTES
        num_bytes = HEADER_BYTES + size * SLOTS * slot_bytes
        join_s = timeout_s if join_timeout_s is None else join_timeout_s
        place = RankPlace(name=name, rank=rank, size=size, num_bytes=num_bytes, timeout_s=join_s)
        self._memory, pids = _shared_memory(place)
        self._start = ctypes.c_char.from_buffer(self._memory)
        self._state = RanksState(
            memory=ctypes.addressof(self._start),
            rank=rank,
            size=size,
            slot_bytes=slot_bytes,
            one_shot_bytes=ONE_SHOT_BYTES,
            timeout_ns=int(timeout_s * 1e9),
            spin_ns=1000 * _spin_us(spin_us, size),
            spin_now_ns=1000 * _spin_us(spin_us, size),
            pids=(_int32 * MAX_RANKS)(*pids),
            pidfds=(_int32 * MAX_RANKS)(*([-1] * MAX_RANKS)),
        )
        self._is_open = True
        self._take_kernels(native)
        self._watch(pids)

    def _take_kernels(self, native: Library) -> None:
        state = ctypes.addressof(self._state)
        self._args = CollectiveArgs(ranks=state)
        self._reference = ctypes.byref(self._args)
        self._all_to_all_args = AllToAllArgs(ranks=state)
        names = (
            *("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
            *("send_to_other", "receive_from_other"),
        )
        self._kernels = {name: native.kernel(name, CollectiveArgs, self._fault) for name in names}
        self._leave = native.kernel("leave_ranks", RanksState)
        self._all_to_all = native.kernel("all_to_all", AllToAllArgs, self._fault)

    def _watch(self, pids: Sequence[int]) -> None:
        """Hold on to the other processes, so that their end is seen though ids are reused."""
        pidfd_open = getattr(os, "pidfd_open", None)  # Linux 5.3, Python built there or later
        if pidfd_open is None:
            return
        for rank, pid in enumerate(pids):
            if pid == os.getpid():
                continue
            try:
                self._state.pidfds[rank] = pidfd_open(pid)
            except ProcessLookupError as error:
                self.close()
                raise RankError(f"rank {rank} (process {pid}) has ended", rank) from error
            except OSError:
                self._state.pidfds[rank] = -1  # forbidden or unknown here: the pid must do

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of x over the ranks: float32 sums in rank order. Mutates: x"""
        flat = _flat(x)
        self._call("all_reduce", flat, None, flat.numel(), _dtype_code(x))
        return x if flat is x else x.copy_(flat)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the sum of x over the ranks. Shapes: x [R, ...] -> [...]"""
        if x.dim() == 0 or x.shape[0] != self.size:
            raise ValueError(f"x is {list(x.shape)}: its first size must be {self.size}, the ranks")
        flat = _flat(x)
        out = torch.empty(x.shape[1:], dtype=x.dtype, device=x.device)
        self._call("reduce_scatter", flat, out, out.numel(), _dtype_code(x))
        return out

    def all_gather(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the x of all ranks, of any dtype, in `out` if there is one, else in new memory.

        Shapes: x -> [R, *x.shape]. Mutates: out
        """
        flat, shape = _flat(x), (self.size, *x.shape)
        if out is None:
            out = torch.empty(shape, dtype=x.dtype, device=x.device)
        elif out.shape != shape or out.dtype != x.dtype or not out.is_contiguous():
            raise ValueError(f"out must be {list(shape)} of {x.dtype} without gaps")
        self._call("all_gather", flat, out, flat.nbytes, 0)
        return out

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        """Return the root's x, of any dtype. Mutates: x"""
        if not 0 <= root < self.size:
            raise ValueError(f"root {root}: the ranks are 0 to {self.size - 1}")
        flat = _flat(x)
        self._call("broadcast", flat, None, flat.nbytes, root)
        return x if flat is x or self.rank == root else x.copy_(flat)

    def all_to_all(
        self, pieces: Sequence[torch.Tensor], lengths: Sequence[Sequence[int]] | None = None
    ) -> list[torch.Tensor]:
        """Return the ranks' pieces for this one; pieces[r] goes to rank r. `lengths[i][j]` is the
        first size of the piece from rank i to rank j, if every rank already knows them all.

        Shapes: pieces R x [T_r, ...], their first sizes may differ -> R x [T_q, ...]
        """
        if len(pieces) != self.size:
            raise ValueError(f"{len(pieces)} pieces for {self.size} ranks")
        flats = [_flat(piece) for piece in pieces]
        first = flats[0]
        if any(
            p.dim() == 0 or p.shape[1:] != first.shape[1:] or p.dtype != first.dtype for p in flats
        ):
            raise ValueError("the pieces must have one dtype and, but for the first, one size")
        own = [p.shape[0] for p in flats]
        if lengths is None:
            lengths = self.all_gather(torch.tensor(own, device=first.device)).tolist()
        elif list(lengths[self.rank]) != own:
            raise ValueError(f"the pieces have {own} rows, not {list(lengths[self.rank])}")
        received = [
            first.new_empty((lengths[rank][self.rank], *first.shape[1:]))
            for rank in range(self.size)
        ]
        row_bytes = math.prod(first.shape[1:]) * first.itemsize
        self._exchange(flats, received, max(map(max, lengths)) * row_bytes)
        return received

    def _exchange(
        self, pieces: list[torch.Tensor], received: list[torch.Tensor], largest: int
    ) -> None:
        args = self._all_to_all_args
        to = (_pointer * self.size)(*(piece.data_ptr() for piece in pieces))
        back = (_pointer * self.size)(*(piece.data_ptr() for piece in received))
        to_bytes = (_int64 * self.size)(*(piece.nbytes for piece in pieces))
        back_bytes = (_int64 * self.size)(*(piece.nbytes for piece in received))
        args.pieces, args.received = ctypes.addressof(to), ctypes.addressof(back)
        args.piece_bytes = ctypes.addressof(to_bytes)
        args.received_bytes = ctypes.addressof(back_bytes)
        args.largest = largest
        self._run(self._all_to_all, ctypes.byref(args))

    def send(self, x: torch.Tensor) -> None:
        """Give x, of any dtype, to the other rank of a group of two, which calls `receive`.

        Two chunks, of a quarter of the capacity each, are not waited for.
        """
        self._call_other("send_to_other", _flat(x))

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor sent by the other rank of two: of x's shape and dtype. Mutates: x"""
        flat = _flat(x)
        self._call_other("receive_from_other", flat)
        return x if flat is x else x.copy_(flat)

    def _call_other(self, name: str, flat: torch.Tensor) -> None:
        if self.size != 2:
            raise ValueError(f"there is no one other rank among {self.size}")
        self._call(name, flat, None, flat.nbytes, 0)

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        self._call("all_gather", None, None, 0, 0)

    def close(self) -> None:
        """Give the memory back; a rank that waits for this one then gets an error. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._leave(ctypes.byref(self._state))
        for descriptor in self._state.pidfds:
            if descriptor >= 0:
                os.close(descriptor)
        self._state.memory = None
        del self._start
        self._memory.close()

    def __enter__(self) -> SharedMemoryRanks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self, name: str, x: torch.Tensor | None, out: torch.Tensor | None, count: int, dtype: int
    ) -> None:
        args = self._args
        args.x = None if x is None else x.data_ptr()
        args.out = None if out is None else out.data_ptr()
        args.count, args.dtype = count, dtype
        self._run(self._kernels[name], self._reference)

    def _run(self, kernel: Kernel, reference: object) -> None:
        if not self._is_open:
            raise RankError("this rank has left its group: it was closed", self.rank)
        if kernel(reference):
            raise self._fault()

    def _fault(self) -> RankError:
        """Return the reason for the last call's failure."""
        state = self._state
        rank = state.fault_rank
        who = f"rank {rank} (process {state.pids[rank]})"
        if state.fault == GONE:
            return RankError(f"{who} has ended: it was killed or failed", rank)
        if state.fault == LEFT:
            return RankError(f"{who} has left the group", rank)
        if state.fault == DIFFERS:
            calls = ""
            if state.own_tag != state.other_tag:
                calls = f": {_described(state.other_tag)} there, {_described(state.own_tag)} here"
            return RankError(f"{who} makes another call than the other ranks{calls}", rank)
        more = " It is stopped." if _is_stopped(state.pids[rank]) else ""
        return RankError(
            f"{who} did not come within {state.timeout_ns / 1e9:g} s to a call of all ranks.{more}",
            rank,
        )


def _shared_memory(place: RankPlace) -> tuple[mmap.mmap, list[int]]:
    """Return memory that all ranks see and their process ids. A single rank does not share it."""
    if place.size == 1:
        return mmap.mmap(-1, place.num_bytes), [os.getpid()]
    descriptor, pids = meet(place)
    try:
        return mmap.mmap(descriptor, place.num_bytes), pids
    finally:
        os.close(descriptor)


def _spin_us(requested: int | None, size: int) -> int:
    if requested is not None:
        return requested
    return DEFAULT_SPIN_US if size <= (os.cpu_count() or 1) else 0


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Return x itself if it is contiguous, else a contiguous copy."""
    if x.device.type != "cpu":
        raise ValueError(f"x is on {x.device}: the memory of ranks holds tensors of the CPU")
    return x if x.is_contiguous() else x.contiguous()


def _dtype_code(x: torch.Tensor) -> int:
    code = DTYPES.get(x.dtype)
    if code is None:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"{x.dtype} cannot be added up; {known} can")
    return code


def _described(tag: int) -> str:
    """Return a call's tag in words."""
    call, detail, count = CALLS.get(tag >> 56, "?"), tag >> 48 & 0xFF, tag & (1 << 48) - 1
    if call in ("all_reduce", "reduce_scatter"):
        dtypes = {code: str(dtype).removeprefix("torch.") for dtype, code in DTYPES.items()}
        return f"{call} of {count} bytes of {dtypes[detail]}"
    return f"{call} of {count} bytes" + (f" from rank {detail}" if call == "broadcast" else "")


def _is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process, if the system says so."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in ("T", "t")
