"""Log-mel spectrograms of whole sounds, a few seconds at a time, and the windows of them that an
encoder reads.

For samples x, frames of 400 around every 160th sample, a Hann window w and mel filters M:

    log10(max(1e-10, M |fft(w x)|^2)), of which nothing lies more than 8 below the loudest, + 4, / 4

A window behind the sound's end is zero. Source: Radford et al., 2022, section 2.2; the filters are
those of the checkpoint's feature extractor
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

BLOCK_FRAMES = 6000
LEAST_POWER = 1e-10
RANGE = 8.0
"""What is below the loudest by more is as quiet as this."""


def log_mel(samples: np.ndarray, extractor: Any) -> np.ndarray:
    """Return the spectrogram of a sound. Shapes: samples [S] float32 -> [M, S / hop] float32"""
    found = np.concatenate(list(_blocks(samples, extractor)), axis=1)
    return (np.maximum(found, found.max() - RANGE) + 4.0) / 4.0


def _blocks(samples: np.ndarray, extractor: Any) -> Iterator[np.ndarray]:
    import torch

    size, hop = int(extractor.n_fft), int(extractor.hop_length)
    half = size // 2
    count = max(1, len(samples) // hop)
    short = max(0, half + 1 - len(samples))  # a reflection needs as many samples as it shows
    sound = np.pad(samples, (0, short))
    padded = torch.from_numpy(np.pad(sound, (half, half), mode="reflect"))
    filters = torch.from_numpy(np.ascontiguousarray(extractor.mel_filters.T, dtype=np.float32))
    window = torch.hann_window(size)
    for first in range(0, count, BLOCK_FRAMES):
        frames = min(BLOCK_FRAMES, count - first)
        part = padded[first * hop : (first + frames - 1) * hop + size]
        seen = torch.stft(part, size, hop, window=window, center=False, return_complex=True)
        power = filters @ seen.abs().square()
        yield power.clamp_min(LEAST_POWER).log10().numpy()


def window(spectrogram: np.ndarray, first: int, count: int) -> np.ndarray:
    """Return `count` frames from one on, zeros behind the end. Shapes: [M, F] -> [M, count]"""
    part = spectrogram[:, first : first + count]
    padded = np.pad(part, ((0, 0), (0, count - part.shape[1])))
    return np.ascontiguousarray(padded, dtype=np.float32)
