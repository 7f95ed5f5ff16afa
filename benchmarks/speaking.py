"""Speech from text: dovetail beside transformers, in turns within one process.

    python -m benchmarks.speaking [--model FOLDER] [--rounds N]

Without a folder, a checkpoint of the published shape of MMS-TTS with random weights is made, whose
durations are as random. Both have one thread, float32 weights and the same noise, so their samples
are equal, which is checked. Prints the seconds of sound per second of processor time of both, the
median of the rounds, and the median and the range of their ratios.
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

from benchmarks.speech import sentences


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


def both(folder: str) -> dict[str, Callable[[str], np.ndarray]]:
    """Return what makes the samples of a text: name -> function."""
    from transformers import VitsModel, VitsTokenizer

    from dovetail import LLM
    from dovetail.pooling_params import PoolingParams

    llm, params = LLM(model=folder, dtype="float32"), PoolingParams(task="speak")
    model: Any = VitsModel.from_pretrained(folder).eval()
    tokenizer = VitsTokenizer.from_pretrained(folder)

    def theirs(text: str) -> np.ndarray:
        torch.manual_seed(0)
        with torch.inference_mode():
            found: np.ndarray = model(**tokenizer(text, return_tensors="pt")).waveform[0].numpy()
        return found

    return {
        "dovetail": lambda text: llm.encode(text, params, use_tqdm=False)[0].data,
        "transformers": theirs,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if asked.model is None:
            write_random(Path(made))
        speak = both(asked.model or made)
    torch.set_num_threads(1)
    text = sentences(1, seed=3)
    samples = {name: make(text) for name, make in speak.items()}
    np.testing.assert_allclose(samples["dovetail"], samples["transformers"], atol=1e-4)
    took: dict[str, list[float]] = {name: [] for name in speak}
    for _ in range(asked.rounds):
        for name, make in speak.items():
            began_s = time.process_time()
            make(text)
            took[name].append(time.process_time() - began_s)
    seconds = len(samples["dovetail"]) / 16_000
    for name, each_s in took.items():
        rate = seconds / statistics.median(each_s)
        print(f"{name}: {rate:.2f} s of sound per second of processor time")
    ratios = [b / a for a, b in zip(took["dovetail"], took["transformers"], strict=True)]
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    print(f"dovetail is {middle:.2f}x as fast ({low:.2f} to {high:.2f}), {seconds:.2f} s of sound")


if __name__ == "__main__":
    main()
