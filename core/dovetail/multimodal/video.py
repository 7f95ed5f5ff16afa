"""Video: samples frames at equal distances, upright, as 8-bit RGB.

Runs in the `worker` process. Frames are counted by reading the packets of the file, since headers
are not trusted; sizes are checked before a frame is decoded.
"""

from __future__ import annotations

import bisect
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import MediaLimit, VideoOptions
from dovetail.multimodal.containers import VIDEO, container
from dovetail.multimodal.extra import package

MAX_FRAMES = 250_000
"""Two hours at 30 frames per second; longer videos are rejected."""

MAX_FRAME_PIXELS = 1 << 24

Frames = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledFrames:
    """The sampled frames, their indices among all frames, and the frames per second."""

    frames: Frames
    indices: tuple[int, ...]
    num_frames: int
    fps: float


def decode_video(data: bytes, options: VideoOptions, limit: MediaLimit) -> SampledFrames:
    """Return frames of a video. Raises: RequestError"""
    name = container(data)
    if name not in VIDEO:
        raise _invalid(
            "the data are not a video of a known format.", "send MP4, WebM, Matroska, AVI or MPEG."
        )
    av = package("av")
    try:
        with av.open(io.BytesIO(data), format=name, options={"protocol_whitelist": ""}) as opened:
            return _sampled(opened, options, limit)
    except RequestError:
        raise
    except MemoryError:
        raise _invalid("the video needs too much memory.") from None
    except Exception as error:  # a damaged file: FFmpeg's exceptions differ by format
        raise _invalid(f"the video is damaged: {str(error)[:200].rstrip('.')}.") from None


def _sampled(opened: Any, options: VideoOptions, limit: MediaLimit) -> SampledFrames:
    if not opened.streams.video:
        raise _invalid("there are no frames in the data.")
    stream = opened.streams.video[0]
    width, height = stream.codec_context.width, stream.codec_context.height
    _check_header(stream, width, height, limit)
    times, keys = _packets(opened, stream)
    fps = float(stream.average_rate or stream.guessed_rate or 0)
    indices = wanted_frames(len(times), fps, options)
    if limit.num_frames is not None and len(indices) > limit.num_frames:
        raise _invalid(
            f"{len(indices)} frames would be taken; at most {limit.num_frames} are "
            "(--limit-mm-per-prompt).",
            "ask for fewer with media_io_kwargs.",
        )
    if len(indices) * width * height > options.max_pixels:
        raise _invalid(
            f"{len(indices)} frames of {width} x {height} have more than {options.max_pixels} "
            "pixels.",
            "send smaller frames, or ask for fewer with media_io_kwargs.",
        )
    stream.codec_context.options = {"max_pixels": str(MAX_FRAME_PIXELS)}
    stream.thread_type = "NONE"
    found = list(_frames(opened, stream, [times[i] for i in indices], keys, (width, height)))
    if len(found) < len(indices):
        raise _invalid("the video is damaged: not all of its frames can be decoded.")
    return SampledFrames(
        frames=numpy.stack(found), indices=tuple(indices), num_frames=len(times), fps=fps
    )


def _check_header(stream: Any, width: int, height: int, limit: MediaLimit) -> None:
    if width < 1 or height < 1:
        raise _invalid("the video has no pixels.")
    if width * height > MAX_FRAME_PIXELS:
        raise _invalid(f"a frame may have up to {MAX_FRAME_PIXELS} pixels, not {width} x {height}.")
    widest, highest = limit.width or width, limit.height or height
    if width > widest or height > highest:
        raise _invalid(
            f"the video has {width} x {height} pixels; at most {widest} x {highest} are taken "
            "(--limit-mm-per-prompt)."
        )
    if stream.frames > MAX_FRAMES:
        raise _too_many_frames()


def _packets(opened: Any, stream: Any) -> tuple[list[int], list[int]]:
    """Return the times of all frames in display order, and the times of keyframes. Units: the
    stream's time base"""
    times: list[int] = []
    keys: list[int] = []
    for packet in opened.demux(stream):
        time = packet.dts if packet.pts is None else packet.pts
        if not packet.size or time is None or packet.is_discard:
            continue
        times.append(time)
        if packet.is_keyframe:
            keys.append(time)
        if len(times) > MAX_FRAMES:
            raise _too_many_frames()
    if not times:
        raise _invalid("there are no frames in the data.")
    return sorted(times), sorted(keys)


def wanted_frames(num_frames: int, fps: float, options: VideoOptions) -> Sequence[int]:
    """Return the indices of the frames to sample: at equal distances, including the first and the
    last if there are several."""
    num = num_frames if options.num_frames == -1 else min(options.num_frames, num_frames)
    if options.fps is not None and fps > 0:
        num = min(num, max(1, int(num_frames / fps * options.fps)))
    if num == 1:
        return [0]
    return [round(i * (num_frames - 1) / (num - 1)) for i in range(num)]


def _frames(
    opened: Any, stream: Any, wanted: Sequence[int], keys: Sequence[int], size: tuple[int, int]
) -> Iterator[Frames]:
    """Yield the frames at these times; stretches between them are skipped by seeking."""
    width, height = size
    at: int | None = None
    decoded: Iterator[Any] = iter(())
    for time in wanted:
        key = keys[bisect.bisect_right(keys, time) - 1] if keys and keys[0] <= time else None
        if at is None or (key is not None and key > at):
            opened.seek(time if key is None else key, stream=stream)
            decoded = opened.decode(stream)
        for frame in decoded:
            at = frame.pts if frame.pts is not None else frame.dts
            if at is not None and at >= time:
                pixels = frame.to_ndarray(format="rgb24", width=width, height=height)
                yield numpy.rot90(pixels, k=round(frame.rotation / 90) % 4)
                break


def _too_many_frames() -> RequestError:
    return _invalid(f"the video has more than {MAX_FRAMES} frames.", "send a part of it.")


def _invalid(what: str, fix: str | None = None) -> RequestError:
    return RequestError(what, fix=fix, code="media_invalid")
