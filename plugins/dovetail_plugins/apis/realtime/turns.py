"""TurnDetector: where turns of speech begin and end, by loudness.

Sound is judged in frames of 20 ms. A frame is loud if its level exceeds both the threshold (0 to 1
means -60 to -20 dB of full scale, so 0.5 is -40) and the level of the background by 10 dB.
The background is the quietest level of late, at least -60 dB: it falls at once, and rises by 3 dB
a second. A turn begins with three loud frames in a row, and ends after as much silence as is set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail_plugins.apis.realtime.protocol import ServerVad

FRAME_S = 0.02
LOUD_FRAMES = 3
LOWEST_DB, RANGE_DB = -60.0, 40.0
MARGIN_DB, RISE_DB_PER_S = 10.0, 3.0
FIRST_FLOOR_DB = -50.0
FULL_SCALE = 32768.0


@dataclass(frozen=True, slots=True)
class Started:
    """A turn began. Units: samples since the session's start, the padding included"""

    at: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """A turn ended. Units: samples since the session's start, the silence included"""

    at: int


class TurnDetector:
    """Follows the sound of a session from sample `at` on."""

    def __init__(self, settings: ServerVad, rate_hz: int, at: int) -> None:
        self._frame = round(rate_hz * FRAME_S)
        self._at = at
        self._rest = np.zeros(0, np.int16)
        self._threshold_db = LOWEST_DB + RANGE_DB * settings.threshold
        self._padding = settings.prefix_padding_ms * rate_hz // 1000
        self._quiet_frames = max(1, round(settings.silence_duration_ms / 1000 / FRAME_S))
        self._floor_db = FIRST_FLOOR_DB
        self._run = 0
        """Loud frames in a row before a turn, quiet ones within a turn."""
        self.is_speaking = False

    @property
    def num_padding(self) -> int:
        """Return how many of the last samples a turn that begins next may need."""
        return self._padding + (LOUD_FRAMES + 1) * self._frame

    def push(self, samples: np.ndarray) -> list[Started | Stopped]:
        """Return what the next samples show. Shapes: [S] int16. Mutates: self"""
        sound = np.concatenate([self._rest, samples])
        count = len(sound) // self._frame
        self._rest = sound[count * self._frame :]
        frames = sound[: count * self._frame].reshape(count, self._frame).astype(np.float32)
        power = np.square(frames / FULL_SCALE).mean(axis=1)
        found: list[Started | Stopped] = []
        for level_db in (10 * np.log10(np.maximum(power, 1e-10))).tolist():
            self._at += self._frame
            if (signal := self._step(level_db)) is not None:
                found.append(signal)
        return found

    def _step(self, level_db: float) -> Started | Stopped | None:
        """Return what one frame shows. Mutates: self"""
        is_loud = level_db > max(self._threshold_db, self._floor_db + MARGIN_DB)
        risen_db = self._floor_db + RISE_DB_PER_S * FRAME_S
        self._floor_db = max(LOWEST_DB, min(level_db, risen_db))
        self._run = self._run + 1 if is_loud != self.is_speaking else 0
        if self._run < (self._quiet_frames if self.is_speaking else LOUD_FRAMES):
            return None
        self.is_speaking, self._run = not self.is_speaking, 0
        if not self.is_speaking:
            return Stopped(self._at)
        return Started(max(0, self._at - LOUD_FRAMES * self._frame - self._padding))
