"""The native library as Python sees it: loaded once, its kernels by name, its threads.

In a source checkout the library is compiled when its sources have changed; an installed package
brings its own. If there is none, `missing_reason()` says why and every op runs on torch.
DOVETAIL_CPU_ISA forces a lower instruction set than the machine has, or none: torch runs all.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_kernels.cpu import recipe

ABI = 1
ISA_VARIABLE = recipe.ISA_VARIABLE
NO_ISA = "none"
DEFAULT_SPIN_US = 50
FOLDER = Path(__file__).resolve().parent / "_lib"
CHECKOUT = Path(__file__).resolve().parents[3]

log = logging.getLogger(__name__)

Kernel = Callable[[Any], int]
"""Takes a reference to the kernel's argument struct; returns 0, or a code of the kernel's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a kernel, by its name, with a copy of its arguments.

    `fault` returns why it failed; None: there was no memory.
    """

    name: str
    function: Any
    args: ctypes.Structure
    fault: Callable[[], Exception] | None = None


Span = Callable[[str], AbstractContextManager[Any]]
"""Takes a kernel's name; its call is made within what this returns."""


class _Watched:
    """Who looks at kernel calls: a recording of one thread's, a profiler. While nothing watches, a
    call only checks `is_any`."""

    is_any = False
    thread: int | None = None
    calls: list[Call]
    span: Span | None = None

    def settle(self) -> None:
        """Say whether anybody looks. Mutates: self"""
        self.is_any = self.thread is not None or self.span is not None


_watched = _Watched()


def start_noting(calls: list[Call], thread: int) -> None:
    """Append every kernel call of a thread to `calls` from now on. Mutates: calls"""
    assert _watched.thread is None, "two recordings at a time"
    _watched.calls, _watched.thread = calls, thread
    _watched.settle()


def stop_noting() -> None:
    """Note no more calls."""
    _watched.thread = None
    _watched.settle()


def is_noting() -> bool:
    """Return whether the kernel calls of this thread are noted."""
    return _watched.thread == threading.get_ident()


def watch_calls(span: Span | None) -> None:
    """Make every kernel call within `span` of its name, from now on; None: of no call more."""
    _watched.span = span
    _watched.settle()


def call_span() -> Span | None:
    """Return the span around kernel calls; None if nothing watches them, or if this thread is
    recording, which must not include the watcher."""
    return None if is_noting() else _watched.span


class Library:
    """A loaded library, on one instruction set."""

    def __init__(self, path: Path, forced_isa: str | None) -> None:
        self.path = path
        self._handle = ctypes.CDLL(str(path))
        if self._handle.dt_abi() != ABI:
            raise OSError(f"{path} speaks ABI {self._handle.dt_abi()}, this dovetail {ABI}")
        self.best_isa = self._text("dt_best_isa")
        self.isa = forced_isa or self._text("dt_usual_isa")
        self._isas = self._find_isas()
        if self.isa not in self._isas:
            known = ", ".join(recipe.usable_sets())
            raise OSError(f"{ISA_VARIABLE}={self.isa}: this machine can run {known}")

    def _text(self, function: str) -> str:
        symbol = self._handle[function]
        symbol.restype = ctypes.c_char_p
        return str(symbol().decode())

    def isas(self) -> list[str]:
        """Return the instruction sets that it has and this machine can run, the best last."""
        return list(self._isas)

    def _find_isas(self) -> list[str]:
        known = next((list(s) for s in recipe.ISA_FLAGS.values() if self.best_isa in s), ["base"])
        first = next(i for i, isa in enumerate(known) if self._has("panel_outputs", isa))
        usable, best = recipe.usable_sets(), self.best_isa
        return [
            isa
            for isa in known[first : known.index(best) + 1]
            if isa in usable and (recipe.extends(best, isa) or self._has("panel_outputs", isa))
        ]

    def kernel(
        self,
        name: str,
        args: type[ctypes.Structure],
        fault: Callable[[], Exception] | None = None,
    ) -> Kernel:
        """Return a kernel; `fault` returns the reason of a failure to a program.

        Raises: OSError when it takes another struct than `args`
        """
        isa = self._isa_of(name)
        expected = ctypes.c_int64.in_dll(self._handle, f"dt_{name}_bytes_{isa}").value
        if expected != ctypes.sizeof(args):
            raise OSError(
                f"{name} takes {expected} bytes, {args.__name__} has {ctypes.sizeof(args)}"
            )
        function = self._handle[f"dt_{name}_{isa}"]
        function.restype = ctypes.c_int

        def watched(reference: Any) -> int:
            if is_noting():
                copied = args.from_buffer_copy(reference._obj)
                _watched.calls.append(Call(name=name, function=function, args=copied, fault=fault))
            span = call_span()
            if span is None:
                return int(function(reference))
            with span(name):
                return int(function(reference))

        def call(reference: Any) -> int:
            return watched(reference) if _watched.is_any else function(reference)

        return call

    def address(self, name: str) -> int:
        """Return the address of a kernel, for another one that calls it."""
        function = self._handle[f"dt_{name}_{self._isa_of(name)}"]
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def program_runner(self) -> Callable[[Any, int], int]:
        """Return the function that runs recorded calls (see program.py)."""
        runner = self._handle.dt_program_run
        runner.restype = ctypes.c_int64
        runner.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        return runner

    def chain_runner(self) -> Callable[[Any], int]:
        """Return the function that runs one program after the other (see chain.py)."""
        runner = self._handle.dt_chain_run
        runner.restype = ctypes.c_int64
        return runner

    def panel_outputs(self) -> int:
        """Return the multiple that the outputs of packed matrices are filled up to."""
        name = "panel_outputs"
        return ctypes.c_int64.in_dll(self._handle, f"dt_{name}_{self._isa_of(name)}").value

    def _isa_of(self, name: str) -> str:
        """Return the instruction set that serves a name: ours, or the best one before it."""
        usable = self._isas[: self._isas.index(self.isa) + 1]
        return next(isa for isa in reversed(usable) if self._has(name, isa))

    def _has(self, name: str, isa: str) -> bool:
        try:
            return self._handle[f"dt_{name}_{isa}"] is not None
        except AttributeError:
            return False

    def set_threads(
        self, count: int, *, spin_us: int = DEFAULT_SPIN_US, cores: Sequence[int] | None = None
    ) -> int:
        """Give kernels `count` threads, the caller among them; return how many there are.

        `spin_us` bounds how long an idle one stays awake; `cores` pins them, the caller first.
        """
        pins = None if cores is None else (ctypes.c_int32 * len(cores))(*cores)
        return int(self._handle.dt_pool_set(count, ctypes.c_int64(spin_us), pins))

    def prefer_large_pages(self, address: int, num_bytes: int) -> None:
        """Ask the system for large pages under memory that is read in streams. A hint."""
        self._handle.dt_prefer_large_pages(ctypes.c_void_p(address), ctypes.c_int64(num_bytes))

    def num_threads(self) -> int:
        """Return how many threads kernels run on."""
        return int(self._handle.dt_pool_threads())


class _State:
    """The result of the one attempt to load."""

    library: Library | None = None
    reason: str | None = None


@functools.cache
def _attempt() -> _State:
    state = _State()
    isa = os.environ.get(ISA_VARIABLE) or None
    if isa == NO_ISA:
        state.reason = f"the native library is not wanted: {ISA_VARIABLE}={NO_ISA}"
        return state
    try:
        path = _find()
        if path is None:
            state.reason = "the native library is not there: no C++ compiler was found to build it"
        else:
            state.library = Library(path, isa)
            state.library.set_threads(_first_threads())
    except (OSError, recipe.BuildError) as error:
        state.reason = f"the native library cannot be used: {error}"
    return state


def _find() -> Path | None:
    """Return the library's file, compiled now if this is a checkout whose sources changed."""
    if not (CHECKOUT / "pyproject.toml").is_file():
        return next(iter(sorted(FOLDER.glob("libdovetail_*.so"))), None)
    start_s = time.perf_counter()
    path = recipe.build(FOLDER, sets=recipe.source_sets(), tell=log.info)
    if time.perf_counter() - start_s > 1.0:
        log.info("compiled the native kernels in %.1f s", time.perf_counter() - start_s)
    return path


def usable_cores() -> list[int]:
    """Return the numbers of the processors that this process may use."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _first_threads() -> int:
    """Return the threads to begin with: OMP_NUM_THREADS, or a thread per processor."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) else len(usable_cores())


def library() -> Library | None:
    """Return the library, or None if there is none (see missing_reason)."""
    return _attempt().library


def needed_library() -> Library:
    """Return the library. Raises: OSError if there is none"""
    found = library()
    if found is None:
        raise OSError(missing_reason())
    return found


def missing_reason() -> str | None:
    """Return the reason why there is no native library; None when there is one."""
    return _attempt().reason
