"""What benchmarks.media measures beside dovetail: transformers, in its own process.

    python -m benchmarks.media_peer FOLDER DTYPE [--processor-time]

Reads lines of a method and a picture's seed, and writes the seconds that it took.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.media import Timer, features, picture, processor_of
from benchmarks.media_models import place_of


class Theirs(Timer):
    """transformers over a checkpoint."""

    def __init__(self, folder: Path, dtype: str, counts_processor_time: bool) -> None:
        import torch
        import transformers as hf

        super().__init__(counts_processor_time)
        self._torch = torch
        self._processor, self._place = processor_of(folder), place_of(folder)
        auto = hf.AutoModelForImageTextToText
        self._model: Any = auto.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def first(self, seed: int) -> float:
        """Return the seconds of a picture's first token."""
        image = picture(seed)
        return self.timed(lambda: self._first(image))

    def _first(self, image: Any) -> None:
        text = f"{self._place} what is it?"
        given = self._processor(text=[text], images=[image], return_tensors="pt")
        given["pixel_values"] = given["pixel_values"].to(self._model.dtype)
        self._model.generate(**given, max_new_tokens=1, do_sample=False)

    def encoder(self, seed: int) -> float:
        """Return the seconds of a pass of the encoder."""
        given = features(self._processor, picture(seed), self._model.dtype)
        encode = self._model.model.get_image_features
        with self._torch.inference_mode():
            return self.timed(lambda: encode(**given, return_dict=True))


def main() -> None:
    """Measure what standard input asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--processor-time", action="store_true", help="of all threads")
    asked = parser.parse_args()
    theirs = Theirs(asked.folder, asked.dtype, asked.processor_time)
    for line in sys.stdin:
        method, seed = line.split()
        print(getattr(theirs, method)(int(seed)), flush=True)


if __name__ == "__main__":
    main()
