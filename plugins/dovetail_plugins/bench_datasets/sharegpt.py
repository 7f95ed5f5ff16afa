"""Conversations in ShareGPT's JSON: the first question is the prompt, its answer the length.

Format: a list of {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", ...}]}. Limits
on lengths are those customary for this data set, so that figures can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchDataset, BenchPrompt, DatasetQuery
from dovetail.interfaces.plugin import Info
from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.bench_datasets import _files

LEAST_TOKENS = 4
MOST_PROMPT_TOKENS = 1024
MOST_TOKENS = 2048
QUESTIONERS = ("human", "user")


class ShareGpt(BenchDataset):
    """Reads (question, length of the answer) pairs; --output-len replaces the lengths."""

    info = Info(
        summary="ShareGPT JSON: first question of each conversation, output length of its answer"
    )
    sample: ClassVar[str] = json.dumps(
        [
            {
                "conversations": [
                    {"from": "human", "value": "Name four colours."},
                    {"from": "gpt", "value": "Red, green, blue and yellow."},
                ]
            }
        ]
    )

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Object to lengths: they are the file's."""
        return _files.objections(query)

    def draw(self, query: DatasetQuery) -> list[BenchPrompt]:
        """Return prompts in an order drawn by the seed. Raises: ConfigError"""
        if query.tokenizer is None:
            raise ConfigError(
                "lengths of conversations are counted by the model's tokenizer.",
                where="--dataset-name sharegpt",
                fix="give its folder with --tokenizer.",
            )
        pairs = list(_pairs(_files.read(query), str(query.path)))
        if not pairs:
            raise ConfigError(
                "holds no question with an answer.", where=f"{_files.WHERE} {query.path}"
            )
        usable = _usable(pairs, query)
        if not usable:
            raise ConfigError(
                f"no conversation has at least {LEAST_TOKENS} tokens each way and at most "
                f"{MOST_TOKENS} together.",
                where=f"{_files.WHERE} {query.path}",
            )
        rounds = -(-query.num_prompts // len(usable))
        return (usable * rounds)[: query.num_prompts]


def _usable(pairs: list[tuple[str, str]], query: DatasetQuery) -> list[BenchPrompt]:
    """Return as many prompts as requested, or all there are; counts no further pair."""
    prompts: list[BenchPrompt] = []
    for pair in islice(_files.picked(pairs, query), len(pairs)):
        prompt = _prompt(*pair, query)
        if prompt is not None:
            prompts.append(prompt)
        if len(prompts) == query.num_prompts:
            break
    return prompts


def _pairs(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield (question, answer) of every conversation that begins with them."""
    try:
        conversations = json_value(text)
    except InvalidJson as error:
        raise ConfigError(str(error), where=where) from error
    for item in conversations if isinstance(conversations, list) else ():
        turns = item.get("conversations") if isinstance(item, dict) else ()
        filled_turns = [
            turn for turn in turns or () if isinstance(turn, dict) and turn.get("value")
        ]
        if len(filled_turns) >= 2 and filled_turns[0].get("from") in QUESTIONERS:
            yield str(filled_turns[0]["value"]), str(filled_turns[1]["value"])


def _prompt(question: str, answer: str, query: DatasetQuery) -> BenchPrompt | None:
    """Return the pair as a prompt, or None if a length is outside the limits."""
    prompt_tokens = _files.count(question, query) or 0
    output_tokens = query.output_tokens or _files.count(answer, query) or 0
    is_short = prompt_tokens < LEAST_TOKENS or (
        query.output_tokens is None and output_tokens < LEAST_TOKENS
    )
    is_long = prompt_tokens > MOST_PROMPT_TOKENS or prompt_tokens + output_tokens > MOST_TOKENS
    if is_short or is_long:
        return None
    return BenchPrompt(prompt=question, output_tokens=output_tokens, prompt_tokens=prompt_tokens)
