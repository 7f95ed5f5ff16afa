"""Sound: decodes many file formats to samples of one channel at the requested rate.

Runs in the `worker` process. Sound is read and counted in chunks: the length in a header is not
trusted.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import AudioOptions, MediaLimit
from dovetail.multimodal.containers import SOUND, container
from dovetail.multimodal.extra import package

LIBSNDFILE = frozenset({"wav", "flac", "ogg", "mp3"})
MAX_RATE_HZ = 768_000
MAX_CHANNELS = 16
MAX_SAMPLES = 1 << 26
PIECE_SAMPLES = 1 << 16

Samples = numpy.ndarray[Any, numpy.dtype[numpy.float32]]


def decode_sound(data: bytes, options: AudioOptions, limit: MediaLimit) -> tuple[Samples, int]:
    """Return a sound's samples, the mean of its channels, and their rate in Hz.

    Shapes: [S]. Raises: RequestError
    """
    name = container(data)
    if name not in SOUND:
        raise _invalid(
            "the data are not a sound of a known format.", "send WAV, FLAC, MP3, OGG, M4A or WebM."
        )
    try:
        rate_hz, pieces = _read(data, name)
        wanted_hz = options.sampling_rate or rate_hz
        max_samples = min(int(options.max_seconds * wanted_hz), MAX_SAMPLES)
        samples = _joined(_resampled(pieces, rate_hz, wanted_hz), max_samples)
    except RequestError:
        raise
    except MemoryError:
        raise _invalid("the sound needs too much memory.") from None
    except Exception as error:  # a damaged file: the decoders' exceptions differ by format
        raise _invalid(f"the sound is damaged: {str(error)[:200].rstrip('.')}.") from None
    if limit.length is not None and len(samples) > limit.length:
        raise _invalid(
            f"the sound has {len(samples)} samples; at most {limit.length} are taken "
            "(--limit-mm-per-prompt)."
        )
    return samples, wanted_hz


def _read(data: bytes, name: str) -> tuple[int, Iterator[Samples]]:
    """Return a sound's rate and its chunks, read by libsndfile, or by FFmpeg for other formats."""
    if name in LIBSNDFILE:
        soundfile = package("soundfile")
        try:
            file = soundfile.SoundFile(io.BytesIO(data))
        except soundfile.LibsndfileError:
            return _by_ffmpeg(data, name)  # may support the codec inside
        _check(file.samplerate, file.channels)
        return file.samplerate, _sndfile_pieces(file)
    return _by_ffmpeg(data, name)


def _sndfile_pieces(file: Any) -> Iterator[Samples]:
    with file:
        while len(piece := file.read(PIECE_SAMPLES, dtype="float32", always_2d=True)):
            yield piece.mean(axis=1)


def _by_ffmpeg(data: bytes, name: str) -> tuple[int, Iterator[Samples]]:
    opened = package("av").open(io.BytesIO(data), format=name, options={"protocol_whitelist": ""})
    if not opened.streams.audio:
        raise _invalid("the data has no sound: send a file with a sound track.")
    stream = opened.streams.audio[0]
    _check(stream.rate or 0, stream.channels)
    return stream.rate, _ffmpeg_pieces(opened, stream)


def _ffmpeg_pieces(opened: Any, stream: Any) -> Iterator[Samples]:
    resampler = package("av").AudioResampler(format="fltp", layout=stream.layout, rate=stream.rate)
    with opened:
        for frame in opened.decode(stream):
            for same in resampler.resample(frame):
                yield same.to_ndarray().mean(axis=0, dtype=numpy.float32)


def _check(rate_hz: int, num_channels: int) -> None:
    if not 1 <= rate_hz <= MAX_RATE_HZ:
        raise _invalid(f"a sound may have up to {MAX_RATE_HZ} samples a second, not {rate_hz}.")
    if not 1 <= num_channels <= MAX_CHANNELS:
        raise _invalid(f"a sound may have up to {MAX_CHANNELS} channels, not {num_channels}.")


def _resampled(pieces: Iterable[Samples], rate_hz: int, wanted_hz: int) -> Iterator[Samples]:
    """Yield the chunks at another rate. Source: FFmpeg's libswresample"""
    if rate_hz == wanted_hz:
        yield from pieces
        return
    av = package("av")
    resampler = av.AudioResampler(format="flt", layout="mono", rate=wanted_hz)
    for piece in pieces:
        frame = av.AudioFrame.from_ndarray(
            numpy.ascontiguousarray(piece[None]), format="flt", layout="mono"
        )
        frame.sample_rate = rate_hz
        yield from (out.to_ndarray()[0] for out in resampler.resample(frame))
    yield from (out.to_ndarray()[0] for out in resampler.resample(None))


def at_rate(samples: Samples, rate_hz: int, wanted_hz: int) -> Samples:
    """Return samples at another rate. Shapes: [S] -> [S']. Raises: RequestError"""
    return _joined(_resampled([samples], rate_hz, wanted_hz), MAX_SAMPLES)


def _joined(pieces: Iterable[Samples], max_samples: int) -> Samples:
    """Return all samples. Raises: RequestError for none, for too many or for values that are not
    finite"""
    checked: list[Samples] = []
    num = 0
    for piece in pieces:
        num += len(piece)
        if num > max_samples:
            raise _invalid(f"the sound is too long: at most {max_samples} samples are taken.")
        if not numpy.isfinite(piece).all():
            raise _invalid("the sound holds NaN or infinite samples.")
        checked.append(piece)
    if not num:
        raise _invalid("the sound is empty.")
    return numpy.concatenate(checked).astype(numpy.float32, copy=False)


def _invalid(what: str, fix: str | None = None) -> RequestError:
    return RequestError(what, fix=fix, code="media_invalid")
