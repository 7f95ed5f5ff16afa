"""Shared by datasets that read a file: reading, objections to length flags, picking entries."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import DatasetQuery

Entry = TypeVar("Entry")
WHERE = "--dataset-path"


def objections(query: Any) -> list[str]:
    """Return why a file cannot answer the query: it brings its own prompts."""
    if not isinstance(query, DatasetQuery):
        return []
    reasons = []
    if query.input_tokens is not None:
        reasons.append("its prompts are as long as they are: leave out --input-len")
    if query.range_ratio or query.prefix_tokens:
        reasons.append("it draws no lengths and no prefix: leave out --range-ratio, --prefix-len")
    if query.path is None:
        reasons.append("it reads a file: give --dataset-path")
    return reasons


def read(query: DatasetQuery) -> str:
    """Return the text of the query's file. Raises: ConfigError"""
    path = Path(query.path or "").expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}.", where=f"{WHERE} {path}") from error


def picked(entries: Sequence[Entry], query: DatasetQuery) -> Iterator[Entry]:
    """Yield the entries in an order drawn by the seed, again and again. Raises: ConfigError"""
    if not entries:
        raise ConfigError("holds no usable entry.", where=f"{WHERE} {query.path}")
    order = list(entries)
    random.Random(query.seed).shuffle(order)
    while True:
        yield from order


def count(text: str, query: DatasetQuery) -> int | None:
    """Return the tokens of a text, or None without a tokenizer."""
    return None if query.tokenizer is None else len(query.tokenizer.encode(text))
