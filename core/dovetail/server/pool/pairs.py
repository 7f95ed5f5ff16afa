"""Scores of pairs of texts: what must be pooled for them, and what then comes of it.

A model with one class reads both texts as one prompt and tells their score (a cross-encoder); of a
model that makes vectors it is the cosine of the two, each text read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from dovetail.engine.client.input import Prompt, verify_text
from dovetail.engine.client.long_text import encoded
from dovetail.engine.context_length import PROMPT, verify_pooled
from dovetail.errors import RequestError
from dovetail.interfaces.pooling_params import CLASSIFY, EMBED, PoolingParams
from dovetail.interfaces.spec import EngineSpec, PoolingSpec
from dovetail.interfaces.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledPrompt:
    """What must be pooled: a prompt, text or token ids, and how."""

    prompt: Prompt
    params: PoolingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Pairs of texts on their way to scores.

    All of `prompts` are pooled; `pairs` says of which of them each score is made, of one or two.
    """

    prompts: tuple[PooledPrompt, ...]
    pairs: tuple[tuple[int, ...], ...]

    def scores(self, pooled: Sequence[np.ndarray]) -> list[float]:
        """Return the scores of all pairs; `pooled` are the numbers told of all `prompts`."""
        return [_score([pooled[at] for at in pair]) for pair in self.pairs]


def plan_scores(
    spec: EngineSpec,
    tokenizer: Tokenizer,
    firsts: Sequence[str],
    seconds: Sequence[str],
    *,
    truncate: int | None = None,
    params: PoolingParams | None = None,
) -> Scoring:
    """Return what to pool for the scores of pairs: one first text and all seconds, or as many of
    both. `params` say how; their task is ignored. Raises: RequestError"""
    task = score_task(spec.run.pooling)
    asked = msgspec.structs.replace(params or PoolingParams(task=task), task=task)
    if len(firsts) == 1:
        firsts = [firsts[0]] * len(seconds)
    if len(firsts) != len(seconds):
        raise RequestError(
            f"{len(firsts)} texts do not pair with {len(seconds)}.",
            where="text_1",
            fix="send one first text, or as many as there are second ones.",
        )
    pairs = list(zip(firsts, seconds, strict=True))
    if task == EMBED:
        return _apart(pairs, asked)
    prompts = []
    for first, second in pairs:
        most = spec.run.max_model_tokens
        ids, num_first = pair_prompt(tokenizer, first, second, most=most, truncate=truncate)
        told = msgspec.structs.replace(asked, first_text_tokens=num_first)
        prompts.append(PooledPrompt(prompt=ids, params=told))
    return Scoring(prompts=tuple(prompts), pairs=tuple((at,) for at in range(len(prompts))))


def score_task(pooling: PoolingSpec | None) -> str:
    """Return the task by which a model scores. Raises: RequestError where it cannot"""
    assert pooling is not None
    if EMBED in pooling.tasks:
        return EMBED
    if CLASSIFY in pooling.tasks and len(pooling.labels) == 1:
        return CLASSIFY
    raise RequestError(
        f"a model of one class scores, and this one has {len(pooling.labels)}.",
        where="task",
        fix="classify with it, or use a cross-encoder or a model that embeds.",
    )


def _apart(pairs: Sequence[tuple[str, str]], params: PoolingParams) -> Scoring:
    """Return the texts of pairs each as a prompt, none twice."""
    places: dict[str, int] = {}
    made = [tuple(places.setdefault(text, len(places)) for text in pair) for pair in pairs]
    prompts = tuple(PooledPrompt(prompt=text, params=params) for text in places)
    return Scoring(prompts=prompts, pairs=tuple(made))


def _score(pooled: Sequence[np.ndarray]) -> float:
    if len(pooled) == 1:
        return float(pooled[0].reshape(-1)[0])
    first, second = pooled
    lengths = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0


def pair_prompt(
    tokenizer: Tokenizer, first: str, second: str, *, most: int, truncate: int | None = None
) -> tuple[tuple[int, ...], int | None]:
    """Return the tokens of two texts, and how many of them belong to the first, which is
    PoolingParams.first_text_tokens.

    `most` is the length of the context. `truncate` keeps so many tokens (-1: the context's): the
    longer text is cut at its end first. Raises: RequestError
    """
    before, after = tokenizer.special_around()
    texts = []
    for text in (first, second):
        verify_text(PROMPT, text)
        texts.append(encoded(tokenizer, text, add_special_tokens=False, most=most))
    one, two = texts
    keep = most if truncate == -1 else truncate
    if keep is not None:
        room = keep - len(before) - 2 * len(after)
        if room < 2:
            raise RequestError("leaves no room for two texts.", where="truncate_prompt_tokens")
        one, two = _cut(one, two, room)
    ids = (*before, *one, *after, *two, *after)
    verify_pooled(len(ids), most)
    return ids, len(before) + len(one) + len(after)


def _cut(one: Sequence[int], two: Sequence[int], room: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return two texts of `room` tokens at most, of which the longer is cut first."""
    if len(one) + len(two) <= room:
        return one, two
    shorter = min(len(one), len(two), room // 2)
    if len(one) <= len(two):
        return one[:shorter], two[: room - shorter]
    return one[: room - shorter], two[:shorter]
