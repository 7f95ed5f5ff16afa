"""Random tokens of exactly the requested lengths, with an optional shared prefix.

Token ids are drawn evenly from the vocabulary, special tokens left out. If text is needed, it
consists of words that the tokenizer reads back as one token each, and the whole is counted again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchDataset, BenchPrompt, DatasetQuery
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer

INPUT_TOKENS = 1024
OUTPUT_TOKENS = 128
WORDS = 1000
TRIES = 20


class Random(BenchDataset):
    """Draws lengths and tokens from one generator, prompt after prompt."""

    info = Info(summary="random tokens of exact lengths, with or without a shared prefix")

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Object to a file."""
        has_file = isinstance(query, DatasetQuery) and query.path is not None
        return ["it reads no file: leave out --dataset-path"] if has_file else []

    def draw(self, query: DatasetQuery) -> list[BenchPrompt]:
        """Return prompts. Raises: ConfigError without a tokenizer or a bound of the vocabulary."""
        rng = random.Random(query.seed)
        if not query.needs_text:
            pool = _ids(query)
        else:
            pool = _words(_tokenizer(query), random.Random(query.seed))
        prefix = tuple(rng.choices(pool, k=query.prefix_tokens))
        return [_prompt(query, rng, pool, prefix) for _ in range(query.num_prompts)]


def _prompt(
    query: DatasetQuery, rng: random.Random, pool: Sequence[int], prefix: tuple[int, ...]
) -> BenchPrompt:
    length = _length(query.input_tokens or INPUT_TOKENS, query.range_ratio, rng)
    output_tokens = _length(query.output_tokens or OUTPUT_TOKENS, query.range_ratio, rng)
    if prefix and rng.random() >= query.prefix_share:
        prefix = tuple(rng.choices(pool, k=len(prefix)))
    ids = prefix + tuple(rng.choices(pool, k=length))
    prompt = _text(ids, pool, _tokenizer(query), rng) if query.needs_text else ids
    return BenchPrompt(prompt=prompt, output_tokens=output_tokens, prompt_tokens=len(ids))


def _length(tokens: int, ratio: float, rng: random.Random) -> int:
    """Return a length between (1 - ratio) and (1 + ratio) times `tokens`, at least 1."""
    low, high = round(tokens * (1 - ratio)), round(tokens * (1 + ratio))
    return max(1, rng.randint(low, high))


def _ids(query: DatasetQuery) -> Sequence[int]:
    """Return the token ids to draw from."""
    if query.vocab_tokens is not None:
        return range(query.vocab_tokens)
    facts = _tokenizer(query).facts()
    return [i for i in range(facts.vocab_size) if i not in facts.special_ids]


def _tokenizer(query: DatasetQuery) -> Tokenizer:
    if query.tokenizer is None:
        raise ConfigError(
            "random prompts need to know the vocabulary.",
            where="--dataset-name random",
            fix="give --tokenizer FOLDER, or --vocab-size N with a completions endpoint.",
        )
    return query.tokenizer


def _words(tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """Return up to WORDS ids whose text is one printable token, the same when read again.

    Words that begin with a space come first: nothing merges across them.
    """
    facts = tokenizer.facts()
    order = [i for i in range(facts.vocab_size) if i not in facts.special_ids]
    rng.shuffle(order)
    spaced: list[int] = []
    others: list[int] = []
    for token_id in order:
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if not text.isascii() or not text.isprintable() or not text.strip():
            continue
        if tokenizer.encode(text, add_special_tokens=False) == [token_id]:
            (spaced if text.startswith(" ") else others).append(token_id)
        if len(spaced) >= WORDS:
            break
    return spaced if len(spaced) >= 16 else [*spaced, *others]


def _text(ids: Sequence[int], pool: Sequence[int], tokenizer: Tokenizer, rng: random.Random) -> str:
    """Return text of exactly len(ids) tokens, beginning with these if the tokenizer allows it.

    Raises: ConfigError when no such text is found.
    """
    wanted = list(ids)
    for _ in range(TRIES):
        text = tokenizer.decode(wanted, skip_special_tokens=False)
        counted = tokenizer.encode(text, add_special_tokens=False)
        if len(counted) == len(ids):
            return text
        if pool:
            wanted = counted[: len(ids)] + rng.choices(pool, k=max(0, len(ids) - len(counted)))
    raise ConfigError(
        f"cannot make text of exactly {len(ids)} tokens with this tokenizer.",
        where="--dataset-name random",
        fix="use --endpoint /v1/completions, which takes token ids.",
    )
