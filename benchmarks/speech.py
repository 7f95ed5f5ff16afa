"""Speech made here: sentences by chance, spoken by espeak-ng, at the rate of models of speech."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from random import Random

WHO = ("The old captain", "My younger sister", "A tired farmer", "The quiet teacher")
WHO += ("Every visitor", "The new doctor", "Our neighbour", "A small child")
DID = ("walked slowly across", "remembered", "painted", "crossed", "photographed", "described")
WHAT = ("the narrow bridge", "an empty garden", "the yellow house", "a broken window")
WHAT += ("the railway station", "their wooden boat", "the village church", "a large mountain")
WHEN = ("early in the morning", "before the rain began", "after a long winter")
WHEN += ("while the music played", "on a warm afternoon", "during the holidays")
RATE_HZ = 16_000


def sentences(count: int, seed: int) -> str:
    """Return so many sentences."""
    rng = Random(seed)
    made = (" ".join(rng.choice(part) for part in (WHO, DID, WHAT, WHEN)) for _ in range(count))
    return " ".join(f"{sentence}." for sentence in made)


def speak(text: str, path: Path, voice: str = "en-us") -> float:
    """Write a WAV file of a text as espeak-ng speaks it; return its length. Units: seconds"""
    import av

    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE_HZ)
    with tempfile.NamedTemporaryFile(suffix=".wav") as plain:
        words = ["espeak-ng", "-v", voice, "-s", "150", "-w", plain.name, "--stdin"]
        subprocess.run(words, input=text, text=True, check=True)
        with av.open(plain.name) as heard, av.open(str(path), "w") as out:
            stream = out.add_stream("pcm_s16le", rate=RATE_HZ, layout="mono")
            frames = [*heard.decode(audio=0), None]
            for frame in frames:
                for made in resampler.resample(frame):
                    made.pts = None
                    out.mux(stream.encode(made))
            out.mux(stream.encode(None))
    return (path.stat().st_size - 44) / 2 / RATE_HZ
