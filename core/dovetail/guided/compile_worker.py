"""The process that compiles forms: reads one, answers, reads the next. It may be killed any time.

`python -m dovetail.guided.compile_worker`, spoken to in length-prefixed msgpack over its standard
input and output. Its memory is bounded by the system, its time by whoever waits for it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from typing import BinaryIO

import msgspec
import numpy as np
import psutil

from dovetail.errors import DovetailError
from dovetail.guided.table import GuideTable
from dovetail.interfaces.form import decode_form
from dovetail.interfaces.guided import GuidedBackend, InvalidForm, Vocabulary
from dovetail.interfaces.spec import GuidedSpec

LENGTH = struct.Struct("<I")
PR_SET_PDEATHSIG = 1
TRIED_TOKENS = 3


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A form to compile, as `encode_form` writes it; no form: only make the backend ready."""

    backend: str
    form: bytes


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The artifact, or what is wrong and where in the form."""

    artifact: bytes = b""
    fault: str | None = None
    pointer: str = ""


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


def main() -> None:
    """Compile until the input ends."""
    _end_with_parent()
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints goes to the log
    first = read(incoming)
    if first is None:
        return
    spec = msgspec.msgpack.decode(first, type=GuidedSpec)
    os.nice(10)  # streams that run come first
    table = GuideTable(spec)
    write(outgoing, Answer(artifact=str(table.vocabulary.size).encode()))
    while (data := read(incoming)) is not None:
        job = msgspec.msgpack.decode(data, type=Job)
        # What libraries map when they are imported is no form's fault.
        _limit_memory(spec.compile_memory_bytes if job.form else None)
        write(outgoing, _answer(table, job))


def _limit_memory(more_bytes: int | None) -> None:
    """Let this process map so many bytes more than it has mapped now; None: as many as it wants."""
    soft = resource.RLIM_INFINITY
    if more_bytes is not None:
        soft = psutil.Process().memory_info().vms + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))


def _fault(backend: GuidedBackend, artifact: bytes, vocabulary: Vocabulary) -> str | None:
    """Return why no answer can begin. The first masks are tried here, where taking long is no harm:
    libraries have limits that they tell of then.
    """
    matcher = backend.load(artifact).matcher()
    for _ in range(TRIED_TOKENS):
        mask = np.zeros(vocabulary.mask_words, dtype=np.uint32)
        matcher.fill(mask)
        ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not len(ids):
            return "nothing that this model can write has this form"
        if np.isin(ids, vocabulary.eos_ids).any():
            return None
        if not matcher.accept(int(ids[-1])):
            return "it allows what it does not take"
    return None


def _end_with_parent() -> None:
    """Ask Linux to end this process with the one that started it, whatever it is at."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _answer(table: GuideTable, job: Job) -> Answer:
    """Return what compiling a form brings: whatever goes wrong is the form's fault here."""
    try:
        backend = table.backend(job.backend)
        if not job.form:
            return Answer()
        artifact = backend.compile(decode_form(job.form))
        return Answer(artifact=artifact, fault=_fault(backend, artifact, table.vocabulary))
    except InvalidForm as error:
        return Answer(fault=str(error), pointer=error.pointer)
    except MemoryError:
        return Answer(fault="it takes too much memory")
    except DovetailError as error:
        return Answer(fault=error.what)
    except RecursionError:
        return Answer(fault="it is nested too deep")
    except Exception as error:
        return Answer(fault=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
