"""Speech from text: dovetail beside transformers, in turns within one process.

    python -m benchmarks.speaking [--model FOLDER] [--warm N] [--rounds N]

Without a folder, a checkpoint of the published shape of MMS-TTS with random weights is made, whose
durations are as random. All have one thread and the same noise: transformers and dovetail in
float32, whose samples are equal, which is checked, and dovetail with --dtype bfloat16. Each round
has another sentence, as libraries are slower with sounds of a new length; the first N rounds do not
count. Prints the seconds of sound per second of processor time, the median of the rounds, and the
median and the range of the ratios to transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import string
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.speech import RATE_HZ, sentences

THEIRS = "transformers"


def write_random(folder: Path) -> None:
    """Write a checkpoint of the published shape of facebook/mms-tts-eng with random weights."""
    from transformers import VitsConfig, VitsModel, VitsTokenizer

    words = ["_", *string.ascii_lowercase, *" '-0123456", "<unk>"]
    (folder / "vocab.json").write_text(json.dumps({one: at for at, one in enumerate(words)}))
    tokenizer = VitsTokenizer(
        str(folder / "vocab.json"), pad_token="_", unk_token="<unk>", phonemize=False
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    VitsModel(VitsConfig(vocab_size=len(words))).save_pretrained(folder)


def speakers(folder: str) -> dict[str, Callable[[str], np.ndarray]]:
    """Return what makes the samples of a text: name -> function."""
    from transformers import VitsModel, VitsTokenizer

    model: Any = VitsModel.from_pretrained(folder).eval()
    tokenizer = VitsTokenizer.from_pretrained(folder)

    def theirs(text: str) -> np.ndarray:
        torch.manual_seed(0)
        with torch.inference_mode():
            found: np.ndarray = model(**tokenizer(text, return_tensors="pt")).waveform[0].numpy()
        return found

    ours = {f"dovetail, {dtype}": of_dovetail(folder, dtype) for dtype in ("float32", "bfloat16")}
    return {THEIRS: theirs, **ours}


def of_dovetail(folder: str, dtype: str) -> Callable[[str], np.ndarray]:
    """Return what makes the samples of a text with dovetail."""
    from dovetail import LLM
    from dovetail.pooling_params import PoolingParams

    llm, params = LLM(model=folder, dtype=dtype), PoolingParams(task="speak")
    return lambda text: llm.encode(text, params, use_tqdm=False)[0].data


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--warm", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if asked.model is None:
            write_random(Path(made))
        speak = speakers(asked.model or made)
    torch.set_num_threads(1)
    samples = {name: make(sentences(1, seed=0)) for name, make in speak.items()}
    np.testing.assert_allclose(samples["dovetail, float32"], samples[THEIRS], atol=1e-4)
    took: dict[str, list[float]] = {name: [] for name in speak}
    for number in range(1, asked.warm + asked.rounds + 1):
        for name, make in speak.items():
            began_s = time.process_time()
            length = len(make(sentences(1, seed=number))) / RATE_HZ
            took[name].append((time.process_time() - began_s) / length)
    took = {name: each_s[asked.warm :] for name, each_s in took.items()}
    for name, each_s in took.items():
        ratios = [b / a for a, b in zip(each_s, took[THEIRS], strict=True)]
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        print(
            f"{name}: {1 / statistics.median(each_s):.2f} s of sound per second of processor time, "
            f"{middle:.2f}x ({low:.2f} to {high:.2f}) as fast as transformers"
        )


if __name__ == "__main__":
    main()
