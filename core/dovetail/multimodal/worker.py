"""The process that decodes media, one at a time.

Its input is untrusted: memory is limited here, and the parent process kills this one when a job
takes too long or a decoder breaks. A job and a report are each a length-prefixed msgpack head. A
job's bytes follow it; decoded values are written to a file that both processes have open.
"""

from __future__ import annotations

import base64
import ctypes
import os
import resource
from typing import Any

import msgspec
import numpy

from dovetail.errors import DovetailError, RequestError
from dovetail.interfaces.data.media_settings import (
    AudioOptions,
    ImageOptions,
    MediaLimit,
    VideoOptions,
)
from dovetail.multimodal.images import decode_image
from dovetail.multimodal.sound import decode_sound
from dovetail.multimodal.video import decode_video
from dovetail.processes import process

NICENESS = 5


class MediaBoot(msgspec.Struct, frozen=True, kw_only=True):
    """The boot message: the file to write decoded values to, and this process's address-space
    limit."""

    output_fd: int
    memory_bytes: int


class MediaJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job: `num_bytes` follow it, in base64 if `is_base64`."""

    num_bytes: int
    is_base64: bool
    limit: MediaLimit


class ImageJob(MediaJob, frozen=True, kw_only=True, tag=True):
    """Decode an image."""

    options: ImageOptions


class SoundJob(MediaJob, frozen=True, kw_only=True, tag=True):
    """Decode a sound."""

    options: AudioOptions


class VideoJob(MediaJob, frozen=True, kw_only=True, tag=True):
    """Decode a video."""

    options: VideoOptions


Job = ImageJob | SoundJob | VideoJob


class DecodeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """An error to report to the server's process."""

    what: str
    fix: str | None = None
    code: str | None = None
    status: int = 400


class MediaReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job: shape and dtype of the values in the file, and facts about them; or a
    fault."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    rate_hz: int = 0
    frame_indices: tuple[int, ...] = ()
    num_frames: int = 0
    fps: float = 0.0
    fault: DecodeFailure | None = None


def main() -> int:
    """Work until the parent closes the channel; return the exit status."""
    boot = process.read_boot(MediaBoot)
    channel = process.open_channel()
    _limit_this_process(boot.memory_bytes)
    incoming, outgoing = channel.makefile("rb"), channel.makefile("wb")
    with open(boot.output_fd, "wb", buffering=0, closefd=False) as output:
        while (message := process.read_message(incoming)) is not None:
            job = msgspec.msgpack.decode(message, type=Job)
            report = _answer(job, incoming.read(job.num_bytes), output)
            outgoing.write(process.framed(msgspec.msgpack.encode(report)))
            outgoing.flush()
            _trim()
    return 0


def _limit_this_process(memory_bytes: int) -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(job: Job, data: bytes, output: Any) -> MediaReport:
    """Return the report of a job. Mutates: output"""
    try:
        if job.is_base64:
            data = _from_base64(data)
        report, values = _decoded(job, data)
        _write(output, values)
    except RequestError as error:
        return _refusal(error, error.code, error.status)
    except DovetailError as error:
        return _refusal(error, None, 501)
    except MemoryError:
        what = "the data need too much memory."
        return MediaReport(fault=DecodeFailure(what=what, code="media_invalid"))
    return report


def _refusal(error: DovetailError, code: str | None, status: int) -> MediaReport:
    return MediaReport(
        fault=DecodeFailure(what=error.what, fix=error.fix, code=code, status=status)
    )


def _from_base64(data: bytes) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise RequestError("the data are not in base64.", code="media_invalid") from None


def _decoded(job: Job, data: bytes) -> tuple[MediaReport, numpy.ndarray[Any, Any]]:
    if not data:
        raise RequestError("there are no data.", code="media_invalid")
    facts: dict[str, Any] = {}
    values: numpy.ndarray[Any, Any]
    match job:
        case ImageJob():
            values = decode_image(data, job.options, job.limit)
        case SoundJob():
            values, facts["rate_hz"] = decode_sound(data, job.options, job.limit)
        case VideoJob():
            found = decode_video(data, job.options, job.limit)
            values = found.frames
            facts = {"frame_indices": found.indices, "num_frames": found.num_frames}
            facts["fps"] = found.fps
    return MediaReport(shape=values.shape, dtype=values.dtype.name, **facts), values


def _write(output: Any, values: numpy.ndarray[Any, Any]) -> None:
    """Write the values to the file, from its start. Mutates: output"""
    output.seek(0)
    rest = numpy.ascontiguousarray(values).data.cast("B")
    while rest:
        rest = rest[output.write(rest) :]


def _trim() -> None:
    """Return freed memory to the system; glibc would hold on to it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
