"""Images in prompts: dovetail and transformers in turns, each in its own process.

    python -m benchmarks.media FOLDER --size base --threads 2 --rounds 3

Writes a model of random weights into FOLDER unless it is there (media_models.py), and measures:

- `first token`: a new image and a short text to the first token, features included, against
  transformers' processor and model. Each image is shown once; the two take turns.
- `shared`: 16 requests with one image and texts of their own, against one pass of the encoder and
  16 requests of as many tokens without an image.
- `stall`: four answers are drawn while a request with a new image comes; the longest step beside
  the usual one, and beside one pass of the encoder alone.
- `encoder`: the encoder alone, against transformers' (`get_image_features`).

`--processor-time` counts that of all threads in place of what a clock says, for machines that are
busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.media_models import SIZES, place_of, type_of, write_model

SHARING = 16


def picture(seed: int) -> Any:
    """Return a picture that nobody has seen."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (480, 640, 3), dtype=np.uint8))


def processor_of(folder: Path) -> Any:
    """Return the processor of a model."""
    from dovetail.multimodal.processors import load_processor

    return load_processor(folder, type_of(folder))


def features(processor: Any, image: Any, dtype: Any) -> dict[str, Any]:
    """Return what an encoder takes of a picture."""
    made = processor.image_processor([image], return_tensors="pt")
    return {name: one.to(dtype) if one.is_floating_point() else one for name, one in made.items()}


class Timer:
    """Seconds that calls take, by a clock or of all threads' processor time."""

    def __init__(self, counts_processor_time: bool) -> None:
        self._clock = time.process_time if counts_processor_time else time.perf_counter

    def timed(self, call: Callable[[], Any]) -> float:
        """Return the seconds that a call takes."""
        began_s = self._clock()
        call()
        return self._clock() - began_s


class Peer:
    """A process of transformers' (media_peer.py), whose threads and their waiting are its own."""

    def __init__(self, folder: Path, dtype: str, counts_processor_time: bool) -> None:
        told = [str(folder), dtype, *(["--processor-time"] if counts_processor_time else [])]
        command = [sys.executable, "-m", "benchmarks.media_peer", *told]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, method: str, seed: int) -> float:
        """Return the seconds of a method of media_peer.Theirs; its idle threads sleep by then."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{method} {seed}\n")
        self._process.stdin.flush()
        took_s = float(self._process.stdout.readline())
        time.sleep(0.1)
        return took_s

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Bench(Timer):
    """dovetail over a checkpoint, and pictures that are each shown once."""

    def __init__(self, folder: Path, dtype: str, counts_processor_time: bool) -> None:
        import torch

        from dovetail import LLM, SamplingParams

        super().__init__(counts_processor_time)
        self._torch, self._params = torch, SamplingParams
        self._dtype = getattr(torch, dtype)
        self._processor, self._place = processor_of(folder), place_of(folder)
        self.ours = LLM(model=str(folder), dtype=dtype, max_model_len=1024, use_tqdm_on_load=False)
        self.seed = 0

    def fresh(self) -> Any:
        """Return a picture that was not shown yet."""
        self.seed += 1
        return picture(self.seed)

    def prompt(self, image: Any, text: str = "what is it?") -> dict[str, Any]:
        """Return a prompt with a picture."""
        return {"prompt": f"{self._place} {text}", "multi_modal_data": {"image": image}}

    def generate(self, prompts: list[Any], max_tokens: int = 1) -> Any:
        """Return dovetail's answers."""
        params = self._params(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return self.ours.generate(prompts, params, use_tqdm=False)

    def encoder(self) -> Callable[[], Any]:
        """Return a pass of the encoder."""
        given = features(self._processor, self.fresh(), self._dtype)
        model = self.ours._engine.core._executor.worker.runner.model

        def run() -> None:
            with self._torch.inference_mode():
                model.encode("image", [given])

        return run

    def shared(self) -> float:
        """Return the seconds of requests that share a new picture."""
        image = self.fresh()
        mark = self.seed
        prompts = [self.prompt(image, f"question {mark} {i}?") for i in range(SHARING)]
        return self.timed(lambda: self.generate(prompts))

    def plain(self, num_tokens: int) -> float:
        """Return the seconds of as many requests, whose texts have a beginning in common."""
        base = [(7 * i + self.seed) % 200 + 10 for i in range(num_tokens - 8)]
        ends = [[(i * 31 + j) % 200 + 10 for j in range(8)] for i in range(SHARING)]
        prompts = [{"prompt_token_ids": base + end} for end in ends]
        return self.timed(lambda: self.generate(prompts))

    def steps_with_image(self) -> list[float]:
        """Return the seconds of each step while answers are drawn, longer than all pieces of a
        pass take, and a picture comes."""
        engine = self.ours._engine
        params = self._params(temperature=0.0, max_tokens=120, ignore_eos=True)
        for i in range(4):
            engine.submit(engine.prepare([20 + i] * 30, params))
        from dovetail.llm.prompts import listed

        (late,) = listed(self.prompt(self.fresh()))
        prepared = engine.prepare(late, params)
        taken: list[float] = []
        while engine.has_work:
            if len(taken) == 20:
                engine.submit(prepared)
            taken.append(self.timed(engine.step))
        return taken


def row(name: str, values: list[float], note: str = "") -> str:
    """Return a line of the report."""
    middle = statistics.median(values)
    return f"{name:44} {middle:8.3f}  {min(values):8.3f} .. {max(values):.3f}  {note}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processor-time", action="store_true", help="of all threads")
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    import torch

    torch.set_num_threads(asked.threads)
    if not (asked.folder / "config.json").is_file():
        write_model(asked.folder, asked.size, asked.dtype)
    told = (asked.folder, asked.dtype, asked.processor_time)
    peer, bench = Peer(*told), Bench(*told)
    rows = measure(bench, peer, asked.rounds)
    unit = "seconds of processor time" if asked.processor_time else "seconds"
    print(f"{asked.size}, {asked.dtype}, {asked.threads} threads, {asked.rounds} rounds; {unit}")
    print("\n".join(rows))
    bench.ours.close()
    peer.close()
    sys.stdout.flush()


def measure(bench: Bench, peer: Peer, rounds: int) -> list[str]:
    """Return the lines of the report; contenders take turns."""
    encoder = bench.encoder()
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    (first,) = bench.generate([bench.prompt(bench.fresh())])
    peer.seconds("first", 0)
    num_tokens = len(first.prompt_token_ids)
    for _ in range(rounds):
        note("encoder", bench.timed(encoder))
        note("transformers' encoder", peer.seconds("encoder", bench.seed))
        image = bench.fresh()
        note("first token", bench.timed(lambda i=image: bench.generate([bench.prompt(i)])))
        note("transformers' first token", peer.seconds("first", bench.seed))
        note("16 with one image", bench.shared())
        note("16 without", bench.plain(num_tokens))
        steps = sorted(bench.steps_with_image())
        note("usual step", statistics.median(steps))
        note("longest step", steps[-1])
    pairs = [
        ("encoder: transformers' / dovetail's", "transformers' encoder", "encoder"),
        ("first token: transformers' / dovetail's", "transformers' first token", "first token"),
    ]
    lines = [row(name, values) for name, values in found.items()]
    for name, above, below in pairs:
        ratios = [a / b for a, b in zip(found[above], found[below], strict=True)]
        lines.append(row(name, ratios, "x"))
    bound = [
        one / (encoder + text)
        for one, encoder, text in zip(
            found["16 with one image"], found["encoder"], found["16 without"], strict=True
        )
    ]
    lines.append(row("16 with one image / (encoder + 16 without)", bound, "x"))
    stall = [
        (long - usual) / encoder
        for long, usual, encoder in zip(
            found["longest step"], found["usual step"], found["encoder"], strict=True
        )
    ]
    lines.append(row("stall / encoder", stall, "x"))
    return lines


if __name__ == "__main__":
    main()
