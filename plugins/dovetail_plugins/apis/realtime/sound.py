"""Sound as realtime sessions get it: PCM and G.711 as samples of 16 bits. Source: ITU-T G.711"""

from __future__ import annotations

import numpy as np

from dovetail.errors import RequestError
from dovetail_plugins.apis.realtime.protocol import ALaw, Format, MuLaw, Pcm
from dovetail_plugins.apis.speech.formats import wav_header

SAMPLE_BYTES = 2
_BIAS = 0x84


def samples_of(data: bytes, form: Format) -> np.ndarray:
    """Return the samples of an event. Shapes: [S] int16. Raises: RequestError for half a sample"""
    match form:
        case Pcm():
            if len(data) % SAMPLE_BYTES:
                raise RequestError(
                    "ends within a sample of 16 bits.", where="audio", code="invalid_value"
                )
            return np.frombuffer(data, "<i2")
        case MuLaw():
            return _MU_LAW[np.frombuffer(data, np.uint8)]
        case ALaw():
            return _A_LAW[np.frombuffer(data, np.uint8)]


def wav_of(samples: bytes, rate_hz: int) -> bytes:
    """Return samples of 16 bits as a WAV file."""
    return wav_header(rate_hz, len(samples)) + samples


def _mu_law() -> np.ndarray:
    """Return the sample of each byte. Shapes: [256] int16"""
    code = ~np.arange(256) & 0xFF
    size = ((((code & 0x0F) << 3) + _BIAS) << ((code & 0x70) >> 4)) - _BIAS
    return np.where(code & 0x80, -size, size).astype(np.int16)


def _a_law() -> np.ndarray:
    """Return the sample of each byte. Shapes: [256] int16"""
    code = np.arange(256) ^ 0x55
    part, exponent = ((code & 0x0F) << 4) + 8, (code & 0x70) >> 4
    size = np.where(exponent == 0, part, (part + 0x100) << np.maximum(exponent - 1, 0))
    return np.where(code & 0x80, size, -size).astype(np.int16)


_MU_LAW, _A_LAW = _mu_law(), _a_law()
