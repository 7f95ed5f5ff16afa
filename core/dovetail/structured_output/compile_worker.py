"""The process that compiles constraints: reads one, answers, reads the next.

Its boot message is a StructuredOutputSpec; jobs and answers are length-prefixed msgpack on its
channel. It holds the vocabulary and the backends and forks a child for every constraint: the child
is killed at the limit, the system bounds its memory, and the next constraint finds all as it was.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import select
import signal
import struct
import time
from typing import BinaryIO, NoReturn

import msgspec
import psutil

from dovetail import process
from dovetail.errors import DovetailError
from dovetail.interfaces.constraint import decode_constraint
from dovetail.interfaces.spec import StructuredOutputSpec
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.structured_output.cache import ConstraintCache
from dovetail.structured_output.first_token_probe import FirstTokenProbe, TooSlow

LENGTH = struct.Struct("<I")
PIECE_BYTES = 1 << 20


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint to compile, as `encode_constraint` writes it; no constraint: only make the
    backend ready."""

    backend: str
    constraint: bytes


class CompileResult(msgspec.Struct, frozen=True, kw_only=True):
    """The artifact, or what is wrong and where in the constraint.

    `is_too_complex`: it took what a constraint may take, and would again.
    """

    artifact: bytes = b""
    fault: str | None = None
    pointer: str = ""
    is_too_complex: bool = False


def write(stream: BinaryIO, message: msgspec.Struct) -> None:
    """Write one message."""
    data = msgspec.msgpack.encode(message)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


def read(stream: BinaryIO) -> bytes | None:
    """Return the next message's bytes, or None at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    return stream.read(size)


def main() -> int:
    """Compile until the parent closes the channel; return the exit status."""
    spec = process.read_boot(StructuredOutputSpec)
    channel = process.open_channel()
    incoming, outgoing = channel.makefile("rb"), channel.makefile("wb")
    os.nice(10)  # streams that run come first
    table = ConstraintCache(spec)
    probe = FirstTokenProbe(table.vocabulary)
    write(outgoing, CompileResult(artifact=str(table.vocabulary.size).encode()))
    while (data := read(incoming)) is not None:
        job = msgspec.msgpack.decode(data, type=Job)
        if job.constraint:
            write(outgoing, _in_child(table, probe, job))
        else:
            write(outgoing, _made_ready(table, job.backend))
    return 0


def _made_ready(table: ConstraintCache, backend: str) -> CompileResult:
    """Make a backend here, where every constraint's child finds it."""
    try:
        table.backend(backend)
    except DovetailError as error:
        return CompileResult(fault=error.what)
    except Exception as error:
        return CompileResult(fault=f"{type(error).__name__}: {error}")
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    return CompileResult()


def _in_child(table: ConstraintCache, probe: FirstTokenProbe, job: Job) -> CompileResult:
    """Return what a child answers, or that it had to be killed or ended by itself."""
    limit_s = table.spec.compile_limit_s
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(table, probe, job, writer)
    os.close(writer)
    try:
        data = _received(reader, time.monotonic() + limit_s)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if data is None:
        return CompileResult(fault=f"took more than {limit_s:g} s to compile", is_too_complex=True)
    try:
        return msgspec.msgpack.decode(data, type=CompileResult)
    except msgspec.DecodeError:  # nothing, or not all of it
        what = "cannot be compiled: it ended the process that tried"
        return CompileResult(fault=what, is_too_complex=True)


def _child(table: ConstraintCache, probe: FirstTokenProbe, job: Job, writer: int) -> NoReturn:
    """Compile, write the answer and end, whatever happens."""
    try:
        process.kill_with_parent()
        _limit(table.spec.compile_memory_bytes, table.spec.compile_limit_s)
        with os.fdopen(writer, "wb") as stream:
            stream.write(msgspec.msgpack.encode(_answer(table, probe, job)))
    finally:
        os._exit(0)


def _received(reader: int, until_s: float) -> bytes | None:
    """Return what is written until the other side closes, or None when the time comes first."""
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
    """Let this process map so many bytes more than it has mapped now, and compute so long, should
    nobody be there to kill it."""
    most_bytes = psutil.Process().memory_info().vms + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, resource.RLIM_INFINITY))
    most_cpu_s = math.ceil(most_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most_cpu_s, most_cpu_s))


def _answer(table: ConstraintCache, probe: FirstTokenProbe, job: Job) -> CompileResult:
    """Return what compiling a constraint brings: whatever goes wrong is the constraint's fault
    here."""
    try:
        backend = table.backend(job.backend)
        artifact = backend.compile(decode_constraint(job.constraint))
        return CompileResult(artifact=artifact, fault=probe.fault(backend.load(artifact)))
    except TooSlow as error:
        return CompileResult(fault=str(error), is_too_complex=True)
    except InvalidConstraint as error:
        return CompileResult(fault=str(error), pointer=error.pointer)
    except MemoryError:
        return CompileResult(fault="it takes too much memory")
    except DovetailError as error:
        return CompileResult(fault=error.what)
    except RecursionError:
        return CompileResult(fault="it is nested too deep")
    except Exception as error:
        return CompileResult(fault=f"{type(error).__name__}: {error}")
