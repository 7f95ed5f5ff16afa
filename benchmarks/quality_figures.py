"""How far an engine's logprobs are from the reference's: figures, bars and the table.

Needs numpy alone, so that an engine in a virtual environment of its own can use it. Logprobs are
natural logarithms. A reference is one file of float32, a row for every token that is told after
another one: window by window, all tokens but each window's first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 64
"""Rows compared at once: 64 x 262,144 words x 4 bytes is 64 MiB."""
FIELDS = ("position", "logprob", "reference", "divergence", "agrees")
"""What is kept of every row: its number, both logprobs of the text's token, KL, same best token."""
Bar = Mapping[str, float]
"""Names of figures -> what they may be at most (`top1`: at least)."""


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return logprobs. Shapes: [R, V] -> [R, V] float32"""
    wide = logits.astype(np.float32)
    wide -= wide.max(axis=1, keepdims=True)
    norms = np.log(np.exp(wide).sum(axis=1, dtype=np.float64, keepdims=True))
    wide -= norms.astype(np.float32)
    return wide


class Reference:
    """The reference's logprobs on disk. Rows are numbered from the first window's second token."""

    def __init__(self, path: Path, windows: Sequence[Sequence[int]], vocab_size: int) -> None:
        self.tokens = np.array([token for window in windows for token in window[1:]])
        self.starts = np.cumsum([0, *(len(window) - 1 for window in windows)])
        self._file = path
        self._shape = (len(self.tokens), vocab_size)

    @property
    def num_bytes(self) -> int:
        """Return the size of a complete file."""
        return 4 * self._shape[0] * self._shape[1]

    def create(self) -> np.memmap:
        """Return the empty file as an array to fill."""
        return np.memmap(self._file, dtype=np.float32, mode="w+", shape=self._shape)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Return rows, read now. Shapes: [R] -> [R, V]"""
        array = np.memmap(self._file, dtype=np.float32, mode="r", shape=self._shape)
        return array[positions]


class Comparison:
    """Takes an engine's logits row by row and keeps a few numbers of each."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.found: dict[str, list[Any]] = {name: [] for name in FIELDS}

    def add(self, logits: np.ndarray, first: int) -> None:
        """Compare the rows from `first` on. Shapes: logits [R, V]. Mutates: self"""
        for start in range(0, len(logits), CHUNK):
            part = logits[start : start + CHUNK]
            self._add(part, np.arange(first + start, first + start + len(part)))

    def _add(self, logits: np.ndarray, positions: np.ndarray) -> None:
        tokens = self.reference.tokens[positions, None]
        wanted = self.reference.rows(positions)
        own = log_softmax(logits[:, : wanted.shape[1]])
        apart = (np.exp(wanted) * (wanted - own)).sum(axis=1, dtype=np.float64)
        columns = (
            positions,
            np.take_along_axis(own, tokens, axis=1)[:, 0],
            np.take_along_axis(wanted, tokens, axis=1)[:, 0],
            apart,
            own.argmax(axis=1) == wanted.argmax(axis=1),
        )
        for name, column in zip(FIELDS, columns, strict=True):
            self.found[name] += column.tolist()


def figures(found: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Return the figures of compared rows. `ppl_more` is a share: 0.01 is 1 % more perplexity."""
    own, wanted = (np.array(found[name], dtype=np.float64) for name in ("logprob", "reference"))
    distances = np.abs(own - wanted)
    perplexity, right = math.exp(-own.mean()), math.exp(-wanted.mean())
    return {
        "tokens": len(own),
        "ppl": perplexity,
        "ppl_reference": right,
        "ppl_more": perplexity / right - 1,
        "mean": float(distances.mean()),
        "p99": float(np.quantile(distances, 0.99)),
        "kl": float(np.mean(found["divergence"])),
        "top1": float(np.mean(found["agrees"])),
    }


def failures(row: Mapping[str, Any], bar: Bar, peer: Mapping[str, Any] | None) -> list[str]:
    """Return which figures miss the bar. `peer`: figures of llama.cpp on the same ids, which excuse
    a mean that is no worse than its own, and below whose `top1` a row may not be."""
    missed = []
    for name, limit in bar.items():
        value = abs(row[name]) if name == "ppl_more" else row[name]
        is_excused = name == "mean" and peer is not None and value <= peer["mean"]
        if not value <= limit and not is_excused:
            missed.append(f"{name} {_shown(name, value)} > {_shown(name, limit)}")
    if peer is not None and row["top1"] < peer["top1"]:
        missed.append(f"top-1 {row['top1']:.2%} < {peer['top1']:.2%}")
    return missed


def _shown(name: str, value: float) -> str:
    return f"{value:.2%}" if name == "ppl_more" else f"{value:.3f}"


COLUMNS = (
    "row",
    "perplexity",
    "more",
    "mean of abs",
    "p99",
    "KL",
    "top-1",
    "decoding: mean",
    "decode tok/s",
    "prefill tok/s",
    "weights MiB",
    "peak MiB",
    "bar",
)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    if "error" in row:
        return [row["row"], *("-",) * (len(COLUMNS) - 2), row["error"].replace("|", "\\|")]
    return [
        row["row"],
        f"{row['ppl']:.3f}",
        f"{row['ppl_more']:+.2%}",
        f"{row['mean']:.4f}",
        f"{row['p99']:.3f}",
        f"{row['kl']:.5f}",
        f"{row['top1']:.2%}",
        _number(row.get("decoding"), "{[mean]:.4f}"),
        _number(row.get("decode_tok_s"), "{:.1f}"),
        _number(row.get("prefill_tok_s"), "{:.0f}"),
        _number(row.get("weights_mib"), "{:.0f}"),
        _number(row.get("peak_mib"), "{:.0f}"),
        _verdict(row),
    ]


def _number(value: Any, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _verdict(row: Mapping[str, Any]) -> str:
    if row.get("missed") is None:
        return "-"
    return "**fails**: " + "; ".join(row["missed"]) if row["missed"] else "passes"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
