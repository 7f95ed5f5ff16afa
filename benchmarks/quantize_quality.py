"""What every method of `dovetail quantize` does to what the demo model expects next.

    python benchmarks/quantize_quality.py [--tokens 32768] [--calibration-tokens 16384] [--group 64]
        [--methods gptq,awq] [--json FILE]

The model is quantized by each method into a folder of its own and loaded as `serve` does, with
float activations except for "int8, activations too". Two texts are put through it, window by
window: chats by the demo model's own generator that neither training nor calibration saw, and what
the model itself goes on with after the beginnings of such chats, drawn at temperature 1. Of the
first text the mean loss (cross-entropy) may fall by quantization: the model is too sure of itself
there, and noise does it good. So it is taken softened too: each model's logits over the temperature
that is best for it. Of its own words loss can only rise in the mean, by as much as the divergence:
there the model is right by construction. Per method: mebibytes of weights, perplexity, losses less
those of the model with their standard errors over windows, the divergence (Kullback-Leibler, nats
per token) from the model's own chances, and how often the likeliest token is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WINDOW = 256
TEMPERATURES = tuple(0.9 + 0.05 * step for step in range(15))
START = 48
"""Tokens of a chat that the model goes on from."""
METHODS: dict[str, tuple[str, bool, dict[str, str]]] = {
    "int8, activations too": ("int8", False, {}),
    "int8, weights alone": ("int8", False, {"activations": "float"}),
    "fp8": ("fp8", False, {}),
    "gguf-q8_0": ("gguf-q8_0", False, {}),
    "gguf-q4_0": ("gguf-q4_0", False, {}),
    "int4": ("int4", True, {}),
    "awq": ("awq", True, {}),
    "gptq": ("gptq", True, {}),
}
"""What is shown -> the method, whether it has groups, its options."""
DEMO_SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "demo_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How far a text's chances moved. Losses and divergence are nats per token."""

    loss: float
    more: float
    more_error: float
    softened: float
    softened_error: float
    divergence: float
    same_choice: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One method: bytes of its weights, and both texts."""

    method: str
    num_bytes: int
    text: Moved
    own_words: Moved


def chats(seed: int, count: int) -> str:
    """Return rendered chats of the demo model's generator."""
    sys.path.insert(0, str(DEMO_SCRIPTS))
    import data
    import rendering

    return "".join(
        rendering.render(one["messages"], tools=one["tools"]) for one in data.samples(seed, count)
    )


def windows_of(text: str, num_tokens: int) -> list[list[int]]:
    """Return the first tokens of a text in windows."""
    from tokenizers import Tokenizer

    from dovetail.config.checkpoint.sources.model_path import DEMO_PATH

    tokenizer = Tokenizer.from_file(str(DEMO_PATH / "tokenizer.json"))
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids[:num_tokens]
    return [token_ids[start : start + WINDOW] for start in range(0, len(token_ids), WINDOW)]


def loaded(folder: Path, **options: str) -> Any:
    """Return a checkpoint's model as `serve` has it."""
    import torch

    from dovetail.config.config import Config
    from dovetail.config.resolve import resolve
    from dovetail.runner.load.loader import load_model
    from dovetail_testing.harness import PagedModel

    fields = {"model": str(folder), "dtype": "float32", "use_tqdm_on_load": False}
    config = Config.from_fields({**fields, "plugin_options": {"quantization": options}})
    return PagedModel(load_model(resolve(config).run, torch.device("cpu")).module)


def chances(model: Any, windows: list[list[int]]) -> Any:
    """Return logarithms of the chances of every next token. Shapes: -> [T, V]"""
    import torch

    found = []
    for window in windows:
        found += model.forward([(0, window)])
        model.free(0)
    return torch.cat(found).log_softmax(-1)


def continued(windows: list[list[int]]) -> list[list[int]]:
    """Return what the model goes on with after the beginning of every window."""
    from dovetail import LLM, SamplingParams
    from dovetail.config.checkpoint.sources.model_path import DEMO_PATH

    length = WINDOW - START
    asked = [
        SamplingParams(temperature=1.0, top_k=-1, top_p=1.0, max_tokens=length, seed=number,
                       ignore_eos=True)
        for number in range(len(windows))
    ]  # fmt: skip
    starts = [window[:START] for window in windows]
    with LLM(model=str(DEMO_PATH), dtype="float32", max_model_len=512) as llm:
        results = llm.generate(starts, asked, use_tqdm=False)
    return [
        [*start, *result.outputs[0].token_ids]
        for start, result in zip(starts, results, strict=True)
    ]


def moved(own: Any, found: Any, windows: list[list[int]], first: int) -> Moved:
    """Return what changed from token `first` of every window on. Shapes: own, found [T, V]"""
    import torch

    extra, losses, divergences, same, softened = [], [], [], [], []
    own_best, found_best = (best_temperature(one, windows, first) for one in (own, found))
    at = 0
    for window in windows:
        places = slice(at + first - 1, at + len(window) - 1)
        at += len(window)
        wanted = torch.tensor(window[first:]).unsqueeze(1)
        before, after = own[places], found[places]
        loss = -after.gather(1, wanted).squeeze(1)
        losses.append(loss)
        extra.append((loss + before.gather(1, wanted).squeeze(1)).mean())
        cool, warm = (
            -(one / best).log_softmax(-1).gather(1, wanted)
            for one, best in ((before, own_best), (after, found_best))
        )
        softened.append((warm - cool).mean())
        divergences.append((before.exp() * (before - after)).sum(-1))
        same.append((before.argmax(-1) == after.argmax(-1)).float())
    more, soft = torch.stack(extra), torch.stack(softened)
    return Moved(
        loss=float(torch.cat(losses).mean()),
        more=float(more.mean()),
        more_error=float(more.std() / len(more) ** 0.5),
        softened=float(soft.mean()),
        softened_error=float(soft.std() / len(soft) ** 0.5),
        divergence=float(torch.cat(divergences).mean()),
        same_choice=float(torch.cat(same).mean()),
    )


def best_temperature(chances: Any, windows: list[list[int]], first: int) -> float:
    """Return what logits are best divided by. Shapes: chances [T, V]"""
    import torch

    at, places, wanted = 0, [], []
    for window in windows:
        places += range(at + first - 1, at + len(window) - 1)
        wanted += window[first:]
        at += len(window)
    picked, right = chances[places], torch.tensor(wanted).unsqueeze(1)

    def loss(temperature: float) -> float:
        return -float((picked / temperature).log_softmax(-1).gather(1, right).mean())

    return min(TEMPERATURES, key=loss)


def quantized(shown: str, folder: Path, text: Path, asked: argparse.Namespace) -> int:
    """Write the model by a method; return the bytes of its weights."""
    from dovetail.cli.main import main as dovetail
    from dovetail.config.checkpoint.sources.model_path import DEMO_PATH

    method, has_groups, options = METHODS[shown]
    words = ["--group", str(asked.group)] if has_groups else []
    if method in ("gptq", "awq"):
        words += ["--calibration", str(text)]
        words += ["--calibration-tokens", str(asked.calibration_tokens)]
    for name, value in options.items():
        words += [f"--plugin-options.quantizer.{name}", value]
    with contextlib.redirect_stdout(io.StringIO()):
        status = dovetail(
            ["quantize", str(DEMO_PATH), "--method", method, "--out", str(folder), *words]
        )
    assert status == 0, shown
    return weights_bytes(folder)


def weights_bytes(folder: Path) -> int:
    """Return the bytes of a folder's weights."""
    files = [*folder.glob("*.safetensors"), *folder.glob("*.gguf")]
    return sum(file.stat().st_size for file in files)


def measured(asked: argparse.Namespace) -> list[Result]:
    """Return a result for the model itself and for each method."""
    from dovetail.config.checkpoint.sources.model_path import DEMO_PATH

    windows = windows_of(chats(seed=999, count=asked.tokens // 50), asked.tokens)
    written = continued(windows)
    model = loaded(DEMO_PATH)
    own = [chances(model, one) for one in (windows, written)]

    def result(shown: str, num_bytes: int, found: list[Any]) -> Result:
        text = moved(own[0], found[0], windows, 1)
        words = moved(own[1], found[1], written, START)
        return Result(method=shown, num_bytes=num_bytes, text=text, own_words=words)

    results = [result("none", weights_bytes(DEMO_PATH), own)]
    with tempfile.TemporaryDirectory() as root:
        text = Path(root, "calibration.txt")
        text.write_text(chats(seed=4242, count=asked.calibration_tokens // 50), encoding="utf-8")
        for number, shown in enumerate(asked.methods):
            folder = Path(root, str(number))
            num_bytes = quantized(shown, folder, text, asked)
            is_rounded = shown in ("fp8", "int8, activations too")
            options = {} if is_rounded else {"activations": "float"}
            model = loaded(folder, **options)
            results.append(
                result(shown, num_bytes, [chances(model, one) for one in (windows, written)])
            )
    return results


def table(results: list[Result]) -> str:
    """Return the results as a table for people."""
    rows = ["| method | weights | perplexity | loss | loss, softened | loss of its own words | "
            "divergence | same |",
            "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for one in results:
        text, words = one.text, one.own_words
        rows.append(
            f"| {one.method} | {one.num_bytes / 2**20:.1f} MiB | {2.718281828**text.loss:.3f} | "
            f"{text.more:+.4f} ± {text.more_error:.4f} | "
            f"{text.softened:+.4f} ± {text.softened_error:.4f} | "
            f"{words.more:+.4f} ± {words.more_error:.4f} | {text.divergence:.4f} | "
            f"{text.same_choice:.1%} |"
        )
    return "\n".join(rows)


def main() -> int:
    """Print the table; write the figures where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--calibration-tokens", type=int, default=16384)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--methods", type=lambda text: text.split(";"), default=list(METHODS))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results = measured(asked)
    print(table(results))
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
