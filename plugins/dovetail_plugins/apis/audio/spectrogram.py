"""Log-mel spectrograms of whole recordings, computed in blocks, and their windows for an encoder.

For samples x, frames of S samples (400) around every 160th one, a Hann window w and mel filters F:
 log10(max(1e-10, F |fft(w x)|^2)), clipped to at most 8 below the maximum, then (value + 4) / 4
A window after the end of the audio is zero. Only numpy is needed: neither torch nor transformers is
imported. Sources: Radford et al., 2022, section 2.2; Slaney, "Auditory Toolbox", 1998
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail.config.checkpoint.json_files import read_json
from dovetail.interfaces.data.spec import ModelSpec

BLOCK_FRAMES = 6000
LEAST_POWER = 1e-10
RANGE = 8.0
"""Values further than this below the maximum are clipped to it."""
SIZE_SAMPLES, HOP_SAMPLES, RATE_HZ = 400, 160, 16_000
HIGHEST_HZ = 8000.0
LINEAR_HZ, HZ_PER_MEL, STEP = 1000.0, 200.0 / 3.0, np.log(6.4) / 27.0
"""The scale is linear below `LINEAR_HZ`; above, each mel is a factor of e^STEP (Slaney, 1998)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spectrum:
    """The spectrogram settings of a checkpoint. Shapes: filters [M, size / 2 + 1] float32"""

    size: int
    hop: int
    filters: np.ndarray


def spectrum_of(model: ModelSpec) -> Spectrum:
    """Return the settings in a checkpoint's preprocessor_config.json, or defaults for its sizes."""
    said = read_json(Path(model.path) / "preprocessor_config.json", is_required=False)
    bands = int(said.get("feature_size") or model.hf_config["num_mel_bins"])
    size = int(said.get("n_fft") or SIZE_SAMPLES)
    rate_hz = int(said.get("sampling_rate") or RATE_HZ)
    return Spectrum(
        size=size,
        hop=int(said.get("hop_length") or HOP_SAMPLES),
        filters=mel_filters(bands, size, rate_hz),
    )


def mel_filters(bands: int, size: int, rate_hz: int) -> np.ndarray:
    """Return triangular filters of equal area, evenly spaced on the mel scale.

    Shapes: [bands, size / 2 + 1] float32. Source: Slaney, "Auditory Toolbox", 1998
    """
    highest = LINEAR_HZ / HZ_PER_MEL + np.log(HIGHEST_HZ / LINEAR_HZ) / STEP
    mels = np.linspace(0.0, highest, bands + 2)
    above = mels - LINEAR_HZ / HZ_PER_MEL
    edges = np.where(above < 0.0, mels * HZ_PER_MEL, LINEAR_HZ * np.exp(above * STEP))
    low, middle, high = (edges[i : bands + i, None] for i in range(3))
    places = np.linspace(0.0, rate_hz / 2, size // 2 + 1)
    sides = np.minimum((places - low) / (middle - low), (high - places) / (high - middle))
    filters: np.ndarray = np.maximum(0.0, sides) * (2.0 / (high - low))
    return filters.astype(np.float32)


def log_mel(samples: np.ndarray, spectrum: Spectrum) -> np.ndarray:
    """Return the spectrogram of a recording. Shapes: samples [S] float32 -> [M, S / hop] float32"""
    found = np.concatenate(list(_blocks(samples, spectrum)), axis=1)
    return (np.maximum(found, found.max() - RANGE) + 4.0) / 4.0


def _blocks(samples: np.ndarray, spectrum: Spectrum) -> Iterator[np.ndarray]:
    size, hop = spectrum.size, spectrum.hop
    half = size // 2
    count = max(1, len(samples) // hop)
    short = max(0, half + 1 - len(samples))  # reflect padding needs at least as many samples
    padded = np.pad(np.pad(samples, (0, short)), half, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    shape = np.hanning(size + 1)[:-1].astype(np.float32)  # periodic window: without the last zero
    for first in range(0, count, BLOCK_FRAMES):
        seen = np.fft.rfft(frames[first : min(first + BLOCK_FRAMES, count)] * shape)
        power = spectrum.filters @ (np.square(seen.real) + np.square(seen.imag)).T
        yield np.log10(np.maximum(power, LEAST_POWER))


def window(spectrogram: np.ndarray, first: int, count: int) -> np.ndarray:
    """Return `count` frames from `first` on, zero-padded. Shapes: [M, F] -> [M, count]"""
    part = spectrogram[:, first : first + count]
    padded = np.pad(part, ((0, 0), (0, count - part.shape[1])))
    return np.ascontiguousarray(padded, dtype=np.float32)
