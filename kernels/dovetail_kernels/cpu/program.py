"""Program: the native calls of a computation, recorded once and replayed by one call.

While a Recorder is open, every native call of its thread is recorded with a copy of its arguments,
and every new tensor is placed in memory owned by the program. A replay makes the same calls on the
same addresses, so its inputs must stay where they are: write new values there. Any torch operator
that computes cannot be replayed and ends the recording with NotRecordable. The exception is a
function that depends only on tensors (`by_torch`), for which the program calls torch. The idea is
that of CUDA graphs; knows no model.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from dovetail_kernels.cpu import library as native

ALIGNMENT_BYTES = 64
CREATIONS = frozenset({"empty", "empty_like"})
QUESTIONS = frozenset(
    {"__get__", "__len__", "data_ptr", "dim", "is_contiguous", "numel", "size", "stride"}
)
"""What asks about a tensor and not about its numbers."""
VIEWS = frozenset(
    {
        *("__getitem__", "chunk", "contiguous", "flatten", "float", "narrow", "reshape", "select"),
        *("split", "squeeze", "to", "transpose", "unbind", "unflatten", "unsqueeze", "view"),
    }
)
"""Operators that usually return a view; they are refused if they copy."""

Tensors = tuple[torch.Tensor, ...]
TensorFunction = Callable[..., Tensors]
"""A function of tensors that returns new ones."""


class NotRecordable(Exception):
    """The computation did something that is not a native call; the text says what."""


class ProgramStep(ctypes.Structure):
    """See program.h."""

    _fields_ = [("kernel", ctypes.c_void_p), ("args", ctypes.c_void_p)]


class Program:
    """Recorded calls. `output` is the computation's result; running fills it anew."""

    def __init__(self, calls: Sequence[native.Call], output: torch.Tensor, owner: object) -> None:
        self.output = output
        self._calls = calls
        self._kept = owner
        self._steps = (ProgramStep * len(calls))()
        for step, call in zip(self._steps, calls, strict=True):
            step.kernel = ctypes.cast(call.function, ctypes.c_void_p)
            step.args = ctypes.addressof(call.args)
        library = native.library()
        assert library is not None, "a program was recorded without a library"
        self._run = library.program_runner()

    def __len__(self) -> int:
        return len(self._steps)

    def run(self) -> torch.Tensor:
        """Repeat all calls; return the output. Mutates: output, and whatever the calls mutate

        While calls are watched they are made one by one.
        Raises: MemoryError, or the error of a failed call
        """
        span = native.call_span()
        if span is None:
            failed = self._run(self._steps, len(self._steps))
        else:
            failed = self._run_watched(span)
        if failed:
            raise self.fault(failed)
        return self.output

    def fault(self, number: int) -> Exception:
        """Return why a call failed; numbers begin at 1."""
        fault = self._calls[number - 1].fault
        if fault is None:
            return MemoryError(f"call {number} of {len(self._calls)} found no memory")
        return fault()

    @property
    def steps(self) -> ctypes.Array[ProgramStep]:
        """Return the calls as native code runs them."""
        return self._steps

    def _run_watched(self, span: native.Span) -> int:
        """Do the calls, each within its span; return the number of one that failed, or 0."""
        for number, call in enumerate(self._calls, 1):
            with span(call.name):
                if call.function(ctypes.byref(call.args)):
                    return number
        return 0


class Pool:
    """Shared memory for the tensors of programs, only one of which runs at a time."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = defaultdict(list)
        self.num_bytes = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor; its memory comes back when no view of it is left."""
        count = int(np.prod(shape, dtype=np.int64))
        if not count:
            raise NotRecordable("a tensor without elements")
        size = 1 << (count * dtype.itemsize + ALIGNMENT_BYTES - 1).bit_length()
        memory = self._free[size].pop() if self._free[size] else self._new(size)
        start = -memory.ctypes.data % ALIGNMENT_BYTES
        lent = (ctypes.c_char * (size - start)).from_buffer(memory.data, start)
        weakref.finalize(lent, self._free[size].append, memory)
        flat: torch.Tensor = torch.frombuffer(lent, dtype=dtype, count=count)
        return flat.view(list(shape))

    def _new(self, size: int) -> np.ndarray:
        self.num_bytes += size
        return np.empty(size, dtype=np.uint8)


class Recorder(TorchFunctionMode):
    """Notes native calls and hands out the pool's memory; use it as a with block."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.calls: list[native.Call] = []
        self._pool = pool
        self._is_by_torch = False

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Let questions and views pass, place new tensors in the pool, refuse the rest."""
        name = func.__name__
        if self._is_by_torch:
            return func(*args, **(kwargs or {}))
        if name in CREATIONS:
            return self._empty(name, args, dict(kwargs or {}))
        if name not in QUESTIONS and name not in VIEWS:
            raise NotRecordable(f"it runs torch's {name}")
        result = func(*args, **(kwargs or {}))
        if name in VIEWS and _storages(result) - _storages(args):
            raise NotRecordable(f"it copies in torch's {name}")
        return result

    def _empty(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        like = args[0] if name == "empty_like" else None
        if like is not None and not like.is_contiguous():
            raise NotRecordable("it makes a tensor like one with gaps")
        sizes = args if like is None else (tuple(like.shape),)
        shape = sizes[0] if isinstance(sizes[0], Sequence) else sizes
        default = torch.get_default_dtype() if like is None else like.dtype
        return self._pool.empty(shape, kwargs.get("dtype") or default)

    def by_torch(self, function: TensorFunction, tensors: Sequence[torch.Tensor]) -> Tensors:
        """Return the function's result, in the pool's memory, and record that. Mutates: self

        Raises: NotRecordable if a tensor has no elements
        """
        self._is_by_torch = True
        try:
            results = function(*tensors)
            outputs = tuple(self._pool.empty(tensor.shape, tensor.dtype) for tensor in results)
            call = _ByTorch(function, tensors, outputs)
            call()
        finally:
            self._is_by_torch = False
        self.calls.append(call.noted())
        return outputs

    def __enter__(self) -> Recorder:
        global _recorder
        _recorder = self
        native.start_noting(self.calls, threading.get_ident())
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        native.stop_noting()
        super().__exit__(*error)


_recorder: Recorder | None = None
"""The one that was opened last; it is open while calls of its thread are noted."""


class _NoArgs(ctypes.Structure):
    """The arguments of a call that knows its tensors."""

    _fields_ = [("unused", ctypes.c_int64)]


class _ByTorch:
    """A function of tensors that torch computes, as one of a program's calls. It knows the
    addresses of the tensors but does not own them: the maker of the tensors owns their memory."""

    def __init__(
        self, function: TensorFunction, inputs: Sequence[torch.Tensor], outputs: Tensors
    ) -> None:
        self._function = function
        self._inputs, self._outputs = ([_alias(t) for t in ts] for ts in (inputs, outputs))
        self._error: Exception | None = None

    def __call__(self) -> None:
        """Compute again. Mutates: the outputs"""
        for output, result in zip(self._outputs, self._function(*self._inputs), strict=True):
            output.copy_(result)

    def noted(self) -> native.Call:
        """Return this as a call that a program makes."""
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._run)
        return native.Call(name="by_torch", function=function, args=_NoArgs(), fault=self._fault)

    def _run(self, _: object) -> int:
        try:
            self()
        except Exception as error:  # whatever torch raises: no error passes through a native call
            self._error = error
            return 1
        return 0

    def _fault(self) -> Exception:
        assert self._error is not None, "no call failed"
        return self._error


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same memory that does not own it. Raises: NotRecordable if it has no
    elements"""
    if not tensor.numel():
        raise NotRecordable("a tensor without elements")
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in sizes)
    memory = (ctypes.c_char * (count * tensor.itemsize)).from_address(tensor.data_ptr())
    flat: torch.Tensor = torch.frombuffer(memory, dtype=tensor.dtype, count=count)
    return flat.as_strided(tensor.shape, tensor.stride())


def by_torch(function: TensorFunction, *tensors: torch.Tensor) -> Tensors:
    """Return function(*tensors). It must depend only on the numbers in the tensors and on constants
    of every step: a recording that is open in this thread repeats it.

    Raises: NotRecordable if a recording is open and a tensor has no elements
    """
    if _recorder is None or not native.is_noting():
        return function(*tensors)
    return _recorder.by_torch(function, tensors)


def _storages(value: Any) -> set[int]:
    """Return the storage addresses of the tensors in a value, or in a sequence of values."""
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage().data_ptr()}
    if isinstance(value, tuple | list):
        return set().union(*(_storages(v) for v in value)) if value else set()
    return set()


def refuse_recording(reason: str) -> None:
    """End a recording that is open in this thread: the next operation is no native call, and no
    operator that the recorder sees. Raises: NotRecordable"""
    if native.is_noting():
        raise NotRecordable(reason)


def record(function: Callable[[], torch.Tensor], pool: Pool, *, owner: object = None) -> Program:
    """Run `function` once and return it as a program. `owner` owns the memory of its inputs.

    Raises: NotRecordable when it does anything but native calls and views.
    """
    with Recorder(pool) as recorder:
        output = function()
    if not recorder.calls:
        raise NotRecordable("it makes no native call")
    return Program(recorder.calls, output, (owner, pool))
