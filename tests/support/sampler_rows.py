"""Rows for samplers: many random logits, and one call over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import NoOptions
from dovetail.interfaces.structured_output import Vocabulary
from support.samples import sample_of

VOCAB = 300
COUNT = sample_of(1000, 250)


def random_logits(count: int = COUNT, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    """Return rows from flat to peaked; a few tokens of some rows are banned. Shapes: [count, V]"""
    made = np.random.default_rng(seed)
    logits = made.normal(size=(count, vocab)) * made.uniform(0.1, 6.0, size=(count, 1))
    logits[::7, 5:9] = -np.inf
    return torch.from_numpy(logits).float()


def random_ids(count: int, length: int, vocab: int, seed: int = 1) -> np.ndarray:
    """Return texts of few different tokens, which repeat themselves. Shapes: [count, length]"""
    made = np.random.default_rng(seed)
    return made.integers(0, vocab, size=(count, length)) % made.integers(2, vocab, size=(count, 1))


def words(vocab: int = VOCAB) -> Vocabulary:
    """Return a vocabulary of letters; token 3 is ":", and token 4 is "b:c"."""
    tokens = [bytes([97 + i % 26]) for i in range(vocab)]
    tokens[3], tokens[4] = b":", b"b:c"
    return Vocabulary(tokens=tokens, special={}, eos_ids=(), special_ids=frozenset(), size=vocab)


def processor(cls: type[LogitsProcessor], vocab: int = VOCAB) -> LogitsProcessor:
    """Return a processor over a small vocabulary."""
    made = cls(NoOptions(), vocab)
    made._vocabulary = lambda: words(vocab)  # type: ignore[attr-defined]
    return made


def row(
    number: int, extra: Mapping[str, Any], prompt: Any = (), output: Any = (), **params: Any
) -> RowTokens:
    """Return a row whose seed is its number."""
    return RowTokens(
        row=number,
        params=SamplingParams(extra_args=dict(extra), **params),
        prompt_ids=prompt,
        output_ids=output,
        seed=number,
    )


def shaped(
    cls: type[LogitsProcessor],
    logits: torch.Tensor,
    extras: Sequence[Mapping[str, Any]],
    texts: Sequence[tuple[Any, Any]] | None = None,
    **params: Any,
) -> torch.Tensor:
    """Return the logits of rows with these fields, after one call. Shapes: [S, V] -> [S, V]"""
    made, result = processor(cls, logits.shape[1]), logits.clone()
    for number, extra in enumerate(extras):
        prompt, output = texts[number] if texts else ((), ())
        made.add_row(row(number, extra, prompt, output, **params))
    made.apply(result, [(number, number) for number in range(len(extras))])
    return result


def kept(logits: torch.Tensor) -> list[list[int]]:
    """Return the tokens that are left of each row."""
    return [line.isfinite().nonzero().flatten().tolist() for line in logits]
