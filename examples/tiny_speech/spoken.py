"""Spoken digits: what is said, how espeak-ng says it, and which of it is held out.

A line is one to four digits by one voice. Whether it is held out follows from its digits, whoever
speaks them: `is_held_out`.
"""

import hashlib
import io
import subprocess
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import soundfile

RATE_HZ = 16_000
WINDOW_S = 3
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LANGUAGES = ("en-us", "en-gb", "en-gb-scotland", "en-029")
VARIANTS = ("", "+m1", "+m3", "+m5", "+m7", "+f1", "+f2", "+f3", "+f4")
MOST_DIGITS = 4
HELD_OUT_SHARE = 5
"""One of so many lines of three digits and more is held out."""


@dataclass(frozen=True)
class Line:
    """Digits, and how they are spoken."""

    digits: tuple[int, ...]
    voice: str
    words_per_minute: int
    pitch: int

    @property
    def text(self) -> str:
        """Return what a transcript has of it."""
        return written(self.digits)


def written(digits: tuple[int, ...]) -> str:
    """Return what a transcript has of digits."""
    return "".join(f" {digit}" for digit in digits)


def is_held_out(digits: tuple[int, ...]) -> bool:
    """Return whether digits are for questions alone."""
    if len(digits) < 3:
        return False
    return hashlib.sha256(bytes(digits)).digest()[0] % HELD_OUT_SHARE == 0


def line(rng: Random, *, held_out: bool) -> Line:
    """Return a line by chance."""
    while True:
        digits = tuple(rng.randrange(10) for _ in range(rng.randint(1, MOST_DIGITS)))
        if is_held_out(digits) == held_out:
            return Line(
                digits=digits,
                voice=rng.choice(LANGUAGES) + rng.choice(VARIANTS),
                words_per_minute=rng.randint(130, 190),
                pitch=rng.randint(35, 65),
            )


def spoken(one: Line) -> np.ndarray:
    """Return a line as espeak-ng speaks it, at RATE_HZ, without the silence around it."""
    words = " ".join(WORDS[digit] for digit in one.digits)
    command = ["espeak-ng", "-v", one.voice, "-s", str(one.words_per_minute)]
    command += ["-p", str(one.pitch), "--stdout", words]
    done = subprocess.run(command, capture_output=True, check=True)
    samples, rate_hz = soundfile.read(io.BytesIO(done.stdout), dtype="float32")
    count = int(len(samples) * RATE_HZ / rate_hz)
    places = np.arange(count) * (rate_hz / RATE_HZ)
    made = np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
    loud = np.flatnonzero(np.abs(made) > 0.01)
    return made[loud[0] : loud[-1] + 1]


def as_wav(samples: np.ndarray) -> bytes:
    """Return a WAV file."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, format="WAV", subtype="PCM_16")
    return file.getvalue()


def within_silence(samples: np.ndarray) -> np.ndarray:
    """Return a line with a moment of silence before it and behind it, as of a recording."""
    return np.pad(samples, RATE_HZ // 5)


def write_examples(folder: Path, count: int, seed: int) -> list[tuple[Path, str]]:
    """Write held-out sounds; return their paths with what is said in them."""
    rng = Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number in range(count):
        one = line(rng, held_out=True)
        path = folder / f"{number:03}.wav"
        path.write_bytes(as_wav(within_silence(spoken(one))))
        made.append((path, one.text.strip()))
    return made
