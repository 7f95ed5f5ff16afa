"""GGUF files by `dovetail quantize` and by llama.cpp's quantizer: how far from the original.

    python -m benchmarks.gguf_quality MODEL --libllama libllama.so [--llamacpp VENV]
        [--methods "q4_k_m;iq4_xs"] [--importances no|yes|both] [--windows 4] [--seed 1]
        [--threads N] [--work FOLDER] [--json FILE.jsonl]

MODEL is a GGUF file or a folder of safetensors. `benchmarks.gguf_source` makes 16-bit weights of it
that no type holds exactly. dovetail and llama.cpp both write every type, without and with one
importance matrix, which dovetail takes from pages of Python's language reference that are not
scored. Each tensor has to have the same shape and type in both files (but for `q4_0`, whose token
table and head dovetail writes in Q8_0). dovetail then reads both and scores windows of 512 tokens
of other pages: perplexity, and the Kullback-Leibler divergence from transformers in float32 on the
16-bit weights. "ratio" is ours over llama.cpp's divergence; "apart" is their difference in standard
errors over the tokens. A type fails if ours is further away by more than two. Rounding errors of
one and the same method move the ratio by a few percent: --seed gives other weights of the same
model. With --llamacpp (see benchmarks.quality) llama.cpp scores both files as well: the last two
columns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import quality
from benchmarks.quality_figures import Comparison, Reference, figures
from dovetail_plugins.gguf.writing.mixtures import MIXTURES

METHODS = ("q4_k_m", "q5_k_m", "q6_k", "iq4_xs")
OWN_TABLES = ("q4_0",)
"""Mixtures whose tables have other types than llama.cpp's, as documented."""
FLAGS = (*quality.FLOAT_ACTIVATIONS, "--no-weight-cache")
"""How dovetail reads both files."""
MAX_ERRORS = 2.0
CALIBRATION_TOKENS = "4096"
COLUMNS = ("type", "importances", "MiB", "tensors by type", "perplexity", "llama.cpp's", "KL",
           "llama.cpp's", "ratio", "apart", "KL by llama.cpp", "llama.cpp's")  # fmt: skip


def prepared(model: Path, asked: argparse.Namespace) -> quality.Bench:
    """Return the bench of the 16-bit model that is made of another one."""
    first = quality.Bench(model, asked)
    source = first.work / f"source-{asked.seed}"
    if not (source / quality.COMPLETE).exists():
        first.child("gguf_source", {"out": str(source), "seed": asked.seed})
        (source / quality.COMPLETE).touch()
    bench = quality.Bench(source, asked)
    bench.num_windows = asked.windows
    bench.prepare()
    return bench


class Writers:
    """Writes files of one 16-bit model by both tools."""

    def __init__(self, bench: quality.Bench, libllama: Path) -> None:
        self._bench, self._libllama = bench, libllama
        self._plain = self._ours("bf16", "--method", "gguf-bf16")
        self._imatrix = bench.work / "imatrix.gguf"

    def _ours(self, name: str, *words: str) -> Path:
        out = self._bench.work / name
        for file in out.glob("*"):
            file.unlink()
        source = str(self._bench.model)
        self._bench.run(
            [sys.executable, "-m", "dovetail", "quantize", source, "--out", str(out), *words]
        )
        return out / "model.gguf"

    def pair(self, method: str, *, is_measured: bool) -> tuple[Path, Path]:
        """Return dovetail's file and llama.cpp's."""
        words = ["--method", f"gguf-{method}"]
        if is_measured and self._imatrix.exists():
            words += ["--imatrix", str(self._imatrix)]
        elif is_measured:
            words += self._text()
        name = f"{method}-measured" if is_measured else method
        ours, theirs = self._ours(name, *words), self._bench.work / f"{name}-llamacpp.gguf"
        file = {"out": str(theirs), "file_type": MIXTURES[method].file_type}
        file |= {"imatrix": str(self._imatrix)} if is_measured else {}
        job = {"library": str(self._libllama), "source": str(self._plain), "files": [file]}
        self._bench.child("gguf_quality_llamacpp", job)
        return ours, theirs

    def _text(self) -> list[str]:
        from benchmarks.quality_reference import CALIBRATION, topics

        text = self._bench.work / "calibration.txt"
        text.write_text("\n\n".join(topics(CALIBRATION)), encoding="utf-8")
        words = ["--calibrate", str(text), "--calibration-tokens", CALIBRATION_TOKENS]
        return [*words, "--save-imatrix", str(self._imatrix)]


Types = dict[str, tuple[list[int], str]]
"""The shape and the type of every tensor."""


def types_of(file: Path) -> Types:
    """Return the shape and the type of every tensor, read by the package `gguf`."""
    import gguf

    return {
        one.name: ([int(size) for size in one.shape], one.tensor_type.name)
        for one in gguf.GGUFReader(file).tensors
    }


def differences(method: str, ours: Types, theirs: Types) -> list[str]:
    """Return the tensors that are not in both files in one shape and type."""
    names = ours.keys() | theirs.keys()
    if method in OWN_TABLES:
        names -= {"token_embd.weight", "output.weight"}
    return sorted(name for name in names if ours.get(name) != theirs.get(name))


def mixture(types: Types) -> str:
    """Return how many tensors have each quantized type."""
    counts = Counter(kind for _, kind in types.values())
    return ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts) if kind != "F32")


def scored(bench: quality.Bench, file: Path) -> dict[str, list[Any]]:
    """Return what dovetail makes of the windows, token by token."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        job = {**bench.told, "reference": str(bench.reference), "out": str(out)}
        bench.child("gguf_quality", {**job, "model": str(file)})
        found: dict[str, list[Any]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def checked_by_llamacpp(bench: quality.Bench, file: Path) -> float | None:
    """Return the divergence of llama.cpp's own logits, None where it is not installed."""
    if bench.asked.llamacpp is None:
        return None
    found = bench.measure(
        quality.Row(name=str(file), checkpoint=str(file), engine=quality.LLAMACPP)
    )
    if "error" in found:
        raise SystemExit(found["error"])
    return float(found["kl"])


def compared(bench: quality.Bench, writers: Writers, method: str, *, is_measured: bool) -> Any:
    """Return the figures of a type."""
    files = writers.pair(method, is_measured=is_measured)
    found = [scored(bench, file) for file in files]
    kl, their_kl = (np.array(one["divergence"]) for one in found)
    more = kl - their_kl
    error = float(more.std(ddof=1) / len(more) ** 0.5)
    ours, theirs = (figures(one) for one in found)
    types = [types_of(file) for file in files]
    wrong = differences(method, *types)
    apart = float(more.mean()) / error
    return {
        "type": method,
        "importances": is_measured,
        "mib": files[0].stat().st_size / 2**20,
        "tensors": mixture(types[0]),
        "ppl_reference": ours["ppl_reference"],
        "ppl": [ours["ppl"], theirs["ppl"]],
        "kl": [ours["kl"], theirs["kl"]],
        "top1": [ours["top1"], theirs["top1"]],
        "tokens": ours["tokens"],
        "apart": apart,
        "llamacpp_kl": [checked_by_llamacpp(bench, file) for file in files],
        "missed": [*(f"{name} differs" for name in wrong), *(["further"] * (apart > MAX_ERRORS))],
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        cells = [
            row["type"],
            "yes" if row["importances"] else "no",
            f"{row['mib']:.0f}",
            row["tensors"],
            *(f"{one:.3f}" for one in row["ppl"]),
            *(f"{one:.5f}" for one in row["kl"]),
            f"{row['kl'][0] / row['kl'][1]:.3f}",
            f"{row['apart']:+.1f}",
            *("-" if one is None else f"{one:.5f}" for one in row["llamacpp_kl"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def score(path: Path) -> int:
    """Score a file as a job says: dovetail's logits with float activations."""
    from benchmarks.quality_dovetail import Adder, loaded, prompt_logits

    job = json.loads(path.read_text(encoding="utf-8"))
    llm = loaded(job["model"], FLAGS, job["threads"])
    reference = Reference(Path(job["reference"]), job["windows"], job["vocab_size"])
    whole = Comparison(reference)
    for window, first in zip(job["windows"], reference.starts.tolist(), strict=False):
        with prompt_logits(Adder(whole, first)):
            llm.run(window, 1, prompt_logprobs=0)
    Path(job["out"]).write_text(json.dumps(whole.found), encoding="utf-8")
    llm.close()
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gguf_quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("model", type=Path, help="a GGUF file or a folder")
    made.add_argument("--libllama", type=Path, required=True, help="llama.cpp's shared library")
    made.add_argument("--llamacpp", type=Path, help="virtual environment with xllamacpp, numpy")
    made.add_argument("--methods", type=lambda text: text.split(";"), default=list(METHODS))
    made.add_argument("--importances", choices=("no", "yes", "both"), default="both")
    made.add_argument("--windows", type=int, default=quality.NUM_WINDOWS)
    made.add_argument("--seed", type=int, default=1, help="of the 16-bit weights")
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--work", type=Path, default=quality.CACHE, help="folder (gigabytes)")
    made.add_argument("--json", type=Path, help="file that gets a line for every row")
    made.set_defaults(quick=True, verbose=True)
    return made


def measured(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of all types; files are removed once they are scored."""
    bench = prepared(asked.model, asked)
    writers, rows = Writers(bench, asked.libllama.resolve()), []
    wanted = {"no": (False,), "yes": (True,), "both": (False, True)}[asked.importances]
    for is_measured in wanted:
        for method in asked.methods:
            row = compared(bench, writers, method, is_measured=is_measured)
            rows.append(row)
            print(table([row]).splitlines()[-1], *row["missed"], flush=True)
            if asked.json is not None:
                with asked.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"model": asked.model.name, **row}) + "\n")
    return rows


def main() -> int:
    """Compare all types; the exit status is 1 when one fails."""
    if sys.argv[1:2] and sys.argv[1].endswith(".json"):
        return score(Path(sys.argv[1]))
    asked = parser().parse_args()
    rows = measured(asked)
    print(f"\n{table(rows)}")
    return 1 if any(row["missed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
