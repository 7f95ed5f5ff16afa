"""SoundWriter: samples to bytes of a sound format, as they arrive.

WAV and PCM are 16-bit little-endian samples; the other formats are written by FFmpeg. A format has
the model's own rate if it may; PCM always has 24 kHz, as in OpenAI's API. Formats: RIFF WAVE, RFC
9639 (FLAC), RFC 7845 (Ogg Opus), ISO/IEC 11172-3 (MP3), ISO/IEC 13818-7 (AAC in ADTS).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dovetail.errors import ConfigError, RequestError
from dovetail.multimodal.extra import package

USUAL_HZ = 24_000
MPEG_HZ = (8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
UNKNOWN_BYTES = 0xFFFFFFFF
"""The size in the header of a WAV stream, whose length is not known when it begins."""
PAGE_US = 200_000
"""The duration of a page of Ogg in a stream: nothing is sent before a page is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundFormat:
    """A format of the answer. `container` and `codec` are FFmpeg's names ("": written here);
    `rates` are the rates that it may have (none: any)."""

    media_type: str
    container: str = ""
    codec: str = ""
    rates: tuple[int, ...] = ()

    def rate_for(self, rate_hz: int) -> int:
        """Return the rate of a file for sound of a rate."""
        return rate_hz if not self.rates or rate_hz in self.rates else USUAL_HZ


FORMATS = {
    "mp3": SoundFormat(media_type="audio/mpeg", container="mp3", codec="libmp3lame", rates=MPEG_HZ),
    "opus": SoundFormat(
        media_type="audio/ogg",
        container="ogg",
        codec="libopus",
        rates=(8000, 12_000, 16_000, 24_000, 48_000),
    ),
    "aac": SoundFormat(media_type="audio/aac", container="adts", codec="aac", rates=MPEG_HZ),
    "flac": SoundFormat(media_type="audio/flac", container="flac", codec="flac"),
    "wav": SoundFormat(media_type="audio/wav"),
    "pcm": SoundFormat(media_type="audio/pcm", rates=(USUAL_HZ,)),
}


class SoundWriter(Protocol):
    """Writes one sound."""

    def push(self, samples: np.ndarray) -> bytes:
        """Return the bytes that samples complete. Shapes: samples [S] float32. Mutates: self"""

    def finish(self) -> bytes:
        """Return the last bytes. Mutates: self"""


def sound_writer(name: str, rate_hz: int) -> SoundWriter:
    """Return a writer of a format for samples of a rate. Raises: RequestError if a package or a
    codec is missing"""
    form = FORMATS[name]
    try:
        if form.container:
            return _Encoded(form, rate_hz)
        return _Plain(rate_hz, form.rate_for(rate_hz), has_header=name == "wav")
    except ConfigError as error:
        raise RequestError(
            f"this server cannot write {name}: {error.what}",
            where="response_format",
            fix="ask for wav, or have the operator install the package.",
        ) from None


class _Plain:
    """16-bit samples, after a WAV header if `has_header`."""

    def __init__(self, rate_hz: int, wanted_hz: int, *, has_header: bool) -> None:
        self._rate_hz = rate_hz
        self._head = wav_header(wanted_hz, None) if has_header else b""
        self._resampler = None
        if rate_hz != wanted_hz:
            self._av = package("av")
            self._resampler = self._av.AudioResampler(format="flt", layout="mono", rate=wanted_hz)

    def push(self, samples: np.ndarray) -> bytes:
        """Return samples as bytes, and the header before the first ones."""
        head, self._head = self._head, b""
        if self._resampler is None:
            return head + pcm16(samples)
        frame = _frame(self._av, samples, self._rate_hz)
        return head + _joined(self._resampler.resample(frame))

    def finish(self) -> bytes:
        """Return the samples that the resampler still has."""
        return b"" if self._resampler is None else _joined(self._resampler.resample(None))


class _Encoded:
    """A file that FFmpeg writes to memory, from which the bytes are taken."""

    def __init__(self, form: SoundFormat, rate_hz: int) -> None:
        self._av, self._rate_hz, self._out = package("av"), rate_hz, _Output()
        options = {"page_duration": str(PAGE_US)} if form.container == "ogg" else {}
        try:
            self._file: Any = self._av.open(
                self._out, "w", format=form.container, container_options=options
            )
            self._stream = self._file.add_stream(
                form.codec, rate=form.rate_for(rate_hz), layout="mono"
            )
        except (ValueError, self._av.FFmpegError) as error:
            raise ConfigError(f"FFmpeg has no encoder {form.codec}: {error}.") from None

    def push(self, samples: np.ndarray) -> bytes:
        """Return the bytes that are complete."""
        self._file.mux(self._stream.encode(_frame(self._av, samples, self._rate_hz)))
        return self._out.taken()

    def finish(self) -> bytes:
        """Return the bytes of the last packets."""
        self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._out.taken()


class _Output:
    """Where FFmpeg writes. It cannot seek, so nothing that was taken is changed later."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        """Store bytes. Mutates: self"""
        self._written += data
        return len(data)

    def taken(self) -> bytes:
        """Return the bytes since the last call. Mutates: self"""
        data = bytes(self._written)
        self._written.clear()
        return data


def _frame(av: Any, samples: np.ndarray, rate_hz: int) -> Any:
    """Return samples as a frame of FFmpeg."""
    plane = np.ascontiguousarray(samples[None], dtype=np.float32)
    frame = av.AudioFrame.from_ndarray(plane, format="flt", layout="mono")
    frame.sample_rate = rate_hz
    return frame


def _joined(frames: Iterable[Any]) -> bytes:
    return b"".join(pcm16(frame.to_ndarray()[0]) for frame in frames)


def pcm16(samples: np.ndarray) -> bytes:
    """Return samples from -1 to 1 as 16-bit integers, little-endian."""
    return np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()


def wav_header(rate_hz: int, num_bytes: int | None) -> bytes:
    """Return the header of a WAV file of one channel and 16 bits. `num_bytes` is the size of the
    samples (None: a stream). Format: RIFF WAVE"""
    size = UNKNOWN_BYTES if num_bytes is None else num_bytes
    whole = UNKNOWN_BYTES if num_bytes is None else num_bytes + 36
    form = struct.pack("<HHIIHH", 1, 1, rate_hz, 2 * rate_hz, 2, 16)
    head = b"RIFF" + struct.pack("<I", whole) + b"WAVEfmt " + struct.pack("<I", len(form))
    return head + form + b"data" + struct.pack("<I", size)
