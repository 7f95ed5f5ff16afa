"""MediaDecoder: decodes media in a few processes, outside the event loop.

Media decoders are large programs with untrusted input. Each job has a time limit, each process a
memory limit. A process that breaks or takes too long is killed: its request gets an error, and the
next job a new process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from typing import Any

import numpy

from dovetail.errors import Overloaded, RequestError
from dovetail.interfaces.data.media_settings import AUDIO, IMAGE, VIDEO, MediaLimit, MediaOptions
from dovetail.multimodal.content import Decoded, Image, MediaItem, Sound, Video, invalid
from dovetail.multimodal.extra import check_packages
from dovetail.multimodal.worker import ImageJob, Job, MediaBoot, MediaReport, SoundJob, VideoJob
from dovetail.processes.child_channel import ChildChannel
from dovetail.processes.uninterrupted import uninterrupted

logger = logging.getLogger(__name__)

WORKER = "dovetail.multimodal.worker"
NUM_WORKERS = 2
MEMORY_BYTES = 6 << 30
TIME_LIMITS_S = {IMAGE: 10.0, AUDIO: 30.0, VIDEO: 60.0}


class MediaDecoder:
    """One per API process, used within one event loop. Close it. Processes start at the first job.

    Raises: ConfigError if a package is missing
    """

    def __init__(
        self,
        *,
        num_workers: int = NUM_WORKERS,
        memory_bytes: int = MEMORY_BYTES,
        time_limits_s: dict[str, float] | None = None,
    ) -> None:
        check_packages()
        self._turns = asyncio.Semaphore(num_workers)
        self._memory_bytes = memory_bytes
        self._time_limits_s = time_limits_s or TIME_LIMITS_S
        self._idle: list[_Worker] = []

    async def decode(
        self,
        item: MediaItem,
        data: bytes,
        options: MediaOptions,
        limit: MediaLimit,
        *,
        is_base64: bool = False,
    ) -> Decoded:
        """Return the decoded content of an item's bytes. Raises: RequestError, Overloaded"""
        job = _job(item.modality, len(data), is_base64, options, limit)
        async with self._turns:
            worker = self._idle.pop() if self._idle else _Worker(self._memory_bytes)
            try:
                report, values = await worker.run(
                    item, job, data, self._time_limits_s[item.modality]
                )
            finally:
                self._idle.append(worker)
        return _as_decoded(item, report, values)

    @property
    def pids(self) -> list[int]:
        """Return the ids of idle processes."""
        return [worker.pid for worker in self._idle if worker.pid is not None]

    async def close(self) -> None:
        """End the processes."""
        while self._idle:
            await self._idle.pop().end()


class _Worker:
    """One process and the file it writes to. It starts at its first job, and again after it was
    ended."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._channel: ChildChannel | None = None
        self._output: Any = None

    @property
    def pid(self) -> int | None:
        """Return the process's id, None if it is not running."""
        return None if self._channel is None else self._channel.pid

    async def run(
        self, item: MediaItem, job: Job, data: bytes, limit_s: float
    ) -> tuple[MediaReport, numpy.ndarray[Any, Any]]:
        """Return the report of a job, and its values. Raises: RequestError, Overloaded"""
        channel = self._channel or await self._start()
        try:
            async with asyncio.timeout(limit_s):
                await channel.send(job, data)
                report = await channel.receive(MediaReport)
            if report.fault is not None:
                fault = report.fault
                raise RequestError(
                    fault.what,
                    where=item.where,
                    fix=fault.fix,
                    code=fault.code,
                    status=fault.status,
                )
            # Wait for the thread: once the file is closed, its descriptor may be another's.
            return report, await uninterrupted(asyncio.to_thread(self._take, report))
        except TimeoutError:
            await self.end()
            raise invalid(item, f"decoding it takes longer than {limit_s:g} s.") from None
        except (OSError, asyncio.IncompleteReadError):
            await self.end()
            raise invalid(item, "it cannot be decoded: the decoder broke on it.") from None
        except asyncio.CancelledError:
            await self.end()
            raise

    async def end(self) -> None:
        """End the process, whatever it is doing."""
        channel, self._channel = self._channel, None
        output, self._output = self._output, None
        try:
            if channel is not None:
                await channel.close()
        finally:
            if output is not None:
                output.close()

    async def _start(self) -> ChildChannel:
        """Return the channel of a new process. Raises: Overloaded if the system has no resources
        for one, which is not the request's fault"""
        try:
            self._output = _output_file()
            fd = self._output.fileno()
            boot = MediaBoot(output_fd=fd, memory_bytes=self._memory_bytes)
            self._channel = await ChildChannel.open(WORKER, boot, pass_fds=[fd])
        except OSError as error:
            await self.end()
            logger.error("the process that decodes media cannot be started: %s", error)
            raise Overloaded("the process that decodes media cannot be started.") from error
        except BaseException:
            await self.end()
            raise
        return self._channel

    def _take(self, report: MediaReport) -> numpy.ndarray[Any, Any]:
        """Return the values in the file, then empty it. Blocks"""
        values = numpy.empty(report.shape, dtype=report.dtype)
        rest = values.data.cast("B")
        at = 0
        while at < len(rest):
            at += os.preadv(self._output.fileno(), [rest[at:]], at) or len(rest)
        os.ftruncate(self._output.fileno(), 0)
        return values


def _output_file() -> Any:
    """Return an unnamed file, in memory if the system supports that."""
    if sys.platform != "linux":
        return tempfile.TemporaryFile()
    return os.fdopen(os.memfd_create("decoded", os.MFD_CLOEXEC), "w+b", buffering=0)


def _job(
    modality: str, num_bytes: int, is_base64: bool, options: MediaOptions, limit: MediaLimit
) -> Job:
    if modality == IMAGE:
        return ImageJob(
            num_bytes=num_bytes, is_base64=is_base64, limit=limit, options=options.image
        )
    if modality == AUDIO:
        return SoundJob(
            num_bytes=num_bytes, is_base64=is_base64, limit=limit, options=options.audio
        )
    return VideoJob(num_bytes=num_bytes, is_base64=is_base64, limit=limit, options=options.video)


def _as_decoded(item: MediaItem, report: MediaReport, values: numpy.ndarray[Any, Any]) -> Decoded:
    if item.modality == IMAGE:
        return Image(pixels=values)
    if item.modality == AUDIO:
        return Sound(samples=values, rate_hz=report.rate_hz)
    return Video(
        frames=values,
        frame_indices=report.frame_indices,
        num_frames=report.num_frames,
        fps=report.fps,
    )
