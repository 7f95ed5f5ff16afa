"""The process that compiles constraints, one at a time.

Its boot message is a StructuredOutputSpec; jobs and results are length-prefixed msgpack on its
channel. It holds the vocabulary and the backends, and forks a child for every constraint. The child
has limits on processor time, on memory, and a much higher one on wall-clock time. So the next
constraint starts from the same state.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import resource
import select
import signal
import time
from typing import BinaryIO, NoReturn

import msgspec
import psutil

from dovetail.errors import DovetailError
from dovetail.interfaces.data.constraint import decode_constraint, encode_constraint
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.processes import process
from dovetail.registry.blame import described
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.first_token_probe import FirstTokenProbe, TooSlow
from dovetail.structured_output.schemas import original_pointer, rewritten_constraint
from dovetail.structured_output.select_backend import unsupported_parts

PIECE_BYTES = 1 << 20
WALL_FACTOR = 6.0
"""The wall-clock limit as a multiple of the processor-time limit, since other processes may use the
cores."""


class CompileJob(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint to compile, from `encode_constraint`; empty: only load the backend.

    `is_given`: it comes from a request, and its schemas must be rewritten first.
    """

    backend: str
    constraint: bytes
    is_given: bool = False


class CompileResult(msgspec.Struct, frozen=True, kw_only=True):
    """The artifact, or the error and its place in the constraint.

    `is_too_complex`: the constraint exceeded the limits, and would again. `is_starved`: it got too
    little processor time to decide. `rewritten` is a given constraint in the form for backends; the
    artifact is empty if its backend does not enforce it.
    """

    artifact: bytes = b""
    rewritten: bytes = b""
    code: str = "invalid_grammar"
    fault: str | None = None
    pointer: str = ""
    is_too_complex: bool = False
    is_starved: bool = False


def _write(stream: BinaryIO, message: CompileResult) -> None:
    """Write one result."""
    stream.write(process.framed(msgspec.msgpack.encode(message)))
    stream.flush()


def main() -> int:
    """Compile until the parent closes the channel; return the exit status."""
    spec = process.read_boot(StructuredOutputSpec)
    channel = process.open_channel()
    incoming, outgoing = channel.makefile("rb"), channel.makefile("wb")
    cache = ConstraintCache(spec)
    probe = FirstTokenProbe(cache.vocabulary)
    _write(outgoing, CompileResult(artifact=str(cache.vocabulary.size).encode()))
    while (data := process.read_message(incoming)) is not None:
        job = msgspec.msgpack.decode(data, type=CompileJob)
        if job.constraint:
            _write(outgoing, _in_child(cache, probe, job))
        else:
            _write(outgoing, _load_backend(cache, job.backend))
    return 0


def _load_backend(cache: ConstraintCache, backend: str) -> CompileResult:
    """Construct a backend here, so that every child inherits it."""
    try:
        cache.backend(backend)
    except DovetailError as error:
        return CompileResult(fault=error.what)
    except Exception as error:
        return CompileResult(fault=described(error))
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    return CompileResult()


def _in_child(cache: ConstraintCache, probe: FirstTokenProbe, job: CompileJob) -> CompileResult:
    """Return the result of a child, or the error that it was killed or exited early."""
    limit_s = cache.spec.compile_limit_s
    reader, writer = os.pipe()
    own_pid, pid = os.getpid(), os.fork()
    if pid == 0:
        os.close(reader)  # else a result could wait forever for this process to read it
        _child(cache, probe, job, writer, own_pid)
    os.close(writer)
    try:
        data = _received(reader, time.monotonic() + WALL_FACTOR * limit_s)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if data is None:
        what = f"could not be compiled within {WALL_FACTOR * limit_s:g} s: the machine is busy"
        return CompileResult(fault=what, is_starved=True)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        what = f"took more than {limit_s:g} s of processor time to compile"
        return CompileResult(fault=what, is_too_complex=True)
    try:
        return msgspec.msgpack.decode(data, type=CompileResult)
    except msgspec.DecodeError:  # missing or incomplete
        what = "cannot be compiled: compiling it ended the process"
        return CompileResult(fault=what, is_too_complex=True)


def _child(
    cache: ConstraintCache, probe: FirstTokenProbe, job: CompileJob, writer: int, parent_pid: int
) -> NoReturn:
    """Compile, write the result and exit, whatever happens."""
    try:
        process.kill_with_parent()
        if os.getppid() != parent_pid:  # the parent died before the signal was set up
            os._exit(0)
        # At the priority of plain requests, since a client waits for every constraint.
        _limit(cache.spec.compile_memory_bytes, cache.spec.compile_limit_s)
        with os.fdopen(writer, "wb") as stream:
            stream.write(msgspec.msgpack.encode(_compile(cache, probe, job)))
    finally:
        os._exit(0)


def _received(reader: int, until_s: float) -> bytes | None:
    """Return all data up to the end of the stream, or None at the time limit."""
    pieces: list[bytes] = []
    while True:
        left_s = max(0.0, until_s - time.monotonic())
        if not select.select([reader], [], [], left_s)[0]:
            return None
        piece = os.read(reader, PIECE_BYTES)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _limit(more_bytes: int, most_s: float) -> None:
    """Limit this process's additional mapped memory, and its processor time (by SIGPROF). The
    system's own limit, in whole seconds, is higher."""
    most_bytes = psutil.Process().memory_info().vms + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, resource.RLIM_INFINITY))
    most_cpu_s = math.ceil(most_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most_cpu_s, most_cpu_s))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, most_s)


def _compile(cache: ConstraintCache, probe: FirstTokenProbe, job: CompileJob) -> CompileResult:
    """Return the result of compiling; any error is reported as a fault of the constraint."""
    try:
        if job.is_given:
            return _read(cache, probe, job)
        backend = cache.backend(job.backend)
        artifact = probe.compiled(backend, decode_constraint(job.constraint))
        return CompileResult(artifact=artifact)
    except TooSlow as error:
        return CompileResult(fault=str(error), is_too_complex=True)
    except InvalidConstraint as error:
        pointer = original_pointer(decode_constraint(job.constraint), error.pointer)
        return CompileResult(fault=str(error), pointer=pointer)
    except MemoryError:
        return CompileResult(fault="compiling it takes too much memory")
    except DovetailError as error:
        return CompileResult(fault=error.what)
    except RecursionError:
        return CompileResult(fault="it is nested too deep")
    except Exception as error:
        return CompileResult(fault=described(error))


def _read(cache: ConstraintCache, probe: FirstTokenProbe, job: CompileJob) -> CompileResult:
    """Return a given constraint with its schemas rewritten, and compiled if its backend can."""
    try:
        constraint = rewritten_constraint(decode_constraint(job.constraint))
    except InvalidConstraint as error:
        what = str(error)
        return CompileResult(fault=what, pointer=error.pointer, code="unsupported_schema")
    data, artifact = encode_constraint(constraint), b""
    backend = cache.backend(job.backend)
    if not unsupported_parts(type(backend), constraint):
        # The error is reported when this backend is used.
        with contextlib.suppress(InvalidConstraint):
            artifact = probe.compiled(backend, constraint)
    return CompileResult(rewritten=data, artifact=artifact)
