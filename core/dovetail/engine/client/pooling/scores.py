"""Scores of pairs of texts: plans the pooling requests and computes the scores.

A cross-encoder with one class reads both texts as one prompt and returns their score. For an
embedding model the score is the cosine of the two vectors. For a model with a vector per token it
is a sum over the tokens of the first text: of each one's maximum dot product with a token of the
second. Source: Khattab and Zaharia, ColBERT, 2020 (late interaction, MaxSim).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any

import msgspec
import numpy as np

from dovetail.config.checkpoint.sentence_transformers import PAIR
from dovetail.engine.client.pooling.named_prompts import prompt_before, prompted
from dovetail.engine.client.pooling.pairs import pair_prompt
from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import CLASSIFY, EMBED, TOKEN_EMBED, PoolingParams
from dovetail.interfaces.data.spec import EngineSpec, PoolingSpec
from dovetail.interfaces.tokenizer import Tokenizer

Side = Any
"""A prompt: a text, or an image in a form that the caller reads."""
Join = Callable[[str, str], str]
"""Joins two texts into one prompt."""


QUERY = "query"
"""The prompt put before first texts by a model of vectors of tokens that has one of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledPrompt:
    """A prompt to pool, text or token ids, and its params."""

    prompt: Side
    params: PoolingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """The pooling requests of pairs of texts.

    All of `prompts` are pooled; `pairs` has the indices, one or two, of each score's prompts.
    """

    prompts: tuple[PooledPrompt, ...]
    pairs: tuple[tuple[int, ...], ...]

    def score(self, pair: int, pooled: Sequence[np.ndarray]) -> float:
        """Return the score of a pair; `pooled` are the outputs of its prompts."""
        if len(self.pairs[pair]) == 1:
            return float(pooled[0].reshape(-1)[0])
        compare = max_sim if pooled[0].ndim == 2 else cosine
        return compare(*pooled)

    def scores(self, pooled: Sequence[np.ndarray]) -> list[float]:
        """Return the scores of all pairs; `pooled` are the outputs of all `prompts`."""
        return [
            self.score(pair, [pooled[at] for at in prompts])
            for pair, prompts in enumerate(self.pairs)
        ]


def plan_scores(
    spec: EngineSpec,
    tokenizer: Tokenizer,
    firsts: Sequence[Side],
    seconds: Sequence[Side],
    *,
    truncate: int | None = None,
    params: PoolingParams | None = None,
    join: Join | None = None,
    prompt_names: tuple[str | None, str | None] = (None, None),
) -> Scoring:
    """Return what to pool for the scores of pairs: one first text with all seconds, or equally many
    of both. `truncate` then cuts each prompt.

    `params` are the pooling params (their task is ignored); None: the model's defaults. `join`
    joins two texts into one prompt (None: the tokenizer's pair template, or plain concatenation for
    decoders). `prompt_names` are the prompts put before the texts of embedding models. Raises:
    RequestError
    """
    pairs = _paired(firsts, seconds)
    task = score_task(spec.run.pooling)
    task_params = msgspec.structs.replace(params or PoolingParams(task=task), task=task)
    if task != CLASSIFY:
        known = spec.run.pooling.prompts if spec.run.pooling is not None else {}
        if task == TOKEN_EMBED and QUERY in known:
            prompt_names = (prompt_names[0] or QUERY, prompt_names[1])
        starts = [prompt_before(spec.run.pooling, name) for name in prompt_names]
        return _apart(pairs, starts, task_params)
    if not all(isinstance(one, str) for pair in pairs for one in pair):
        raise RequestError("a cross-encoder of this kind reads texts alone.", where="text_2")
    if join is None and spec.run.model.is_causal:
        join = partial(_joined, spec.run.model.hf_config.get(PAIR) or "{query}{document}")
    if join is not None:
        prompts = [PooledPrompt(prompt=text, params=task_params) for text in starmap(join, pairs)]
    else:
        max_tokens = spec.run.max_model_tokens
        prompts = [_as_pair(tokenizer, pair, max_tokens, truncate, task_params) for pair in pairs]
    return Scoring(prompts=tuple(prompts), pairs=tuple((at,) for at in range(len(prompts))))


def score_task(pooling: PoolingSpec | None) -> str:
    """Return the pooling task with which a model scores. Raises: RequestError if it cannot"""
    if pooling is None:
        raise RequestError(
            "this model generates text; it does not score.",
            where="task",
            fix="use a model that embeds or ranks, or start this one with --runner pooling.",
        )
    task = scoring_task(pooling)
    if task is not None:
        return task
    raise RequestError(
        f"a model of one class scores, and this one has {_num_classes(pooling)}"
        + ("." if CLASSIFY in pooling.tasks else " for each token."),
        where="task",
        fix="classify with it, or use a cross-encoder or a model that embeds.",
    )


def scoring_task(pooling: PoolingSpec) -> str | None:
    """Return the pooling task with which a model scores, None if it cannot."""
    if pooling.tasks[0] in (EMBED, TOKEN_EMBED):
        return pooling.tasks[0]
    return CLASSIFY if CLASSIFY in pooling.tasks and _num_classes(pooling) == 1 else None


def _num_classes(pooling: PoolingSpec) -> int:
    return len(pooling.returned_token_ids) or len(pooling.labels)


def _paired(firsts: Sequence[Side], seconds: Sequence[Side]) -> list[tuple[Side, Side]]:
    """Return the pairs. Raises: RequestError unless their numbers match"""
    if not firsts or not seconds:
        raise RequestError("send at least one text.", where="text_2" if firsts else "text_1")
    if len(firsts) not in (1, len(seconds)):
        raise RequestError(
            f"{len(firsts)} texts do not pair with {len(seconds)}.",
            where="text_1",
            fix="send one first text, or as many as there are second ones.",
        )
    if len(firsts) == 1:
        firsts = [firsts[0]] * len(seconds)
    return list(zip(firsts, seconds, strict=True))


def _joined(template: str, first: str, second: str) -> str:
    start, _, rest = template.partition("{query}")
    return start + first + rest.replace("{document}", second)


def _as_pair(
    tokenizer: Tokenizer,
    pair: tuple[str, str],
    max_tokens: int,
    truncate: int | None,
    params: PoolingParams,
) -> PooledPrompt:
    """Return two texts as one prompt. Raises: RequestError"""
    ids, first_tokens = pair_prompt(tokenizer, *pair, max_tokens=max_tokens, truncate=truncate)
    pair_params = msgspec.structs.replace(params, first_text_tokens=first_tokens)
    return PooledPrompt(prompt=ids, params=pair_params)


def _apart(
    pairs: Sequence[tuple[Side, Side]], starts: Sequence[str], params: PoolingParams
) -> Scoring:
    """Return each text or image of the pairs as a prompt, without duplicates."""
    places: dict[Any, tuple[int, PooledPrompt]] = {}
    index_pairs = []
    for pair in pairs:
        indices = []
        for start, one in zip(starts, pair, strict=True):
            side = prompted(start, one) if isinstance(one, str) else one
            request = PooledPrompt(prompt=side, params=params)
            key = side if isinstance(side, str) else id(side)
            indices.append(places.setdefault(key, (len(places), request))[0])
        index_pairs.append(tuple(indices))
    prompts = tuple(prompt for _, prompt in places.values())
    return Scoring(prompts=prompts, pairs=tuple(index_pairs))


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Return the cosine of two vectors; 0 if one is 0. Shapes: [E], [E]"""
    lengths = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0


def max_sim(first: np.ndarray, second: np.ndarray) -> float:
    """Return the sum, over the first text's tokens, of the maximum dot product with a token of the
    second. Shapes: [m, E], [n, E]"""
    return float((first @ second.T).max(axis=1).sum())
