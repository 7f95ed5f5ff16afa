"""The built-in datasets: exact lengths, shared prefixes, files and what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchPrompt, DatasetQuery
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.bench.prompts import load_tokenizer
from dovetail_plugins.bench_datasets.jsonl import Jsonl
from dovetail_plugins.bench_datasets.random import Random
from dovetail_plugins.bench_datasets.sharegpt import ShareGpt

QUERY = DatasetQuery(num_prompts=40, input_tokens=20, output_tokens=10, vocab_tokens=1000)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(DEMO_PATH)


def draw(plugin: Any, query: DatasetQuery) -> list[BenchPrompt]:
    drawn: list[BenchPrompt] = plugin(plugin.Options()).draw(query)
    return drawn


def test_random_ids_have_the_lengths_asked_for() -> None:
    drawn = draw(Random, QUERY)
    assert {len(one.prompt) for one in drawn} == {20} == {one.prompt_tokens for one in drawn}
    assert {one.output_tokens for one in drawn} == {10}
    assert {type(i) for one in drawn for i in one.prompt} == {int}
    ids = [int(i) for one in drawn for i in one.prompt]
    assert min(ids) < 100 and 900 < max(ids) < 1000
    assert drawn != draw(Random, replace(QUERY, seed=1))


def test_random_ids_are_no_special_tokens(tokenizer: Tokenizer) -> None:
    drawn = draw(Random, replace(QUERY, vocab_tokens=None, tokenizer=tokenizer, num_prompts=500))
    ids = {int(i) for one in drawn for i in one.prompt}
    assert len(ids) > 900
    assert not ids & tokenizer.facts().special_ids


def test_lengths_vary_within_the_ratio() -> None:
    drawn = draw(Random, replace(QUERY, num_prompts=2000, range_ratio=0.5))
    for lengths, low, high in (
        ([one.prompt_tokens or 0 for one in drawn], 10, 30),
        ([one.output_tokens for one in drawn], 5, 15),
    ):
        assert (min(lengths), max(lengths)) == (low, high)
        assert sum(lengths) / len(lengths) == pytest.approx((low + high) / 2, rel=0.05)


@pytest.mark.parametrize(
    ("share", "low", "high"), [(1.0, 1, 1), (0.25, 0.15, 0.35), (0.0, 0, 0.01)]
)
def test_a_share_of_the_prompts_has_one_prefix(share: float, low: float, high: float) -> None:
    query = replace(QUERY, num_prompts=400, prefix_tokens=8, prefix_share=share)
    drawn = draw(Random, query)
    assert {one.prompt_tokens for one in drawn} == {28}
    heads = [one.prompt[:8] for one in drawn]
    most = max(map(heads.count, heads))
    assert low * 400 <= most <= max(1, high * 400)
    assert len({one.prompt[8:] for one in drawn}) == 400


@pytest.mark.parametrize("length", [1, 2, 37, 300])
def test_random_text_has_the_lengths_asked_for(tokenizer: Tokenizer, length: int) -> None:
    query = DatasetQuery(
        num_prompts=20, input_tokens=length, prefix_tokens=5, tokenizer=tokenizer, needs_text=True
    )
    for one in draw(Random, query):
        assert isinstance(one.prompt, str)
        counted = tokenizer.encode(one.prompt, add_special_tokens=False)
        assert len(counted) == length + 5 == one.prompt_tokens


def test_random_needs_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match="--vocab-size"):
        draw(Random, replace(QUERY, vocab_tokens=None))
    assert Random.why_not(replace(QUERY, path="file")) != []


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "prompts"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_jsonl(tmp_path: Path) -> None:
    path = file_of(
        tmp_path, '{"prompt": "a", "output_tokens": 3}\n\n{"prompt": [4, 5]}\n{"prompt": "b"}\n'
    )
    drawn = draw(Jsonl, DatasetQuery(num_prompts=6, path=path))
    assert drawn[:3] == drawn[3:]
    assert {(one.prompt, one.output_tokens, one.prompt_tokens) for one in drawn} == {
        ("a", 3, None),
        ((4, 5), 128, 2),
        ("b", 128, None),
    }
    asked = draw(Jsonl, DatasetQuery(num_prompts=3, path=path, output_tokens=9))
    assert {one.output_tokens for one in asked} == {9}
    with pytest.raises(ConfigError, match=r"prompts:3.*chat"):
        draw(Jsonl, DatasetQuery(num_prompts=3, path=path, needs_text=True))


@pytest.mark.parametrize(
    ("line", "text"),
    [("{", "not valid JSON"), ("[]", "prompt"), ('{"prompt": ""}', "prompt"),
     ('{"prompt": "a", "output_tokens": "b"}', "output_tokens"), ("", "no usable entry")],
)  # fmt: skip
def test_wrong_lines_are_named(line: str, text: str, tmp_path: Path) -> None:
    query = DatasetQuery(num_prompts=2, path=file_of(tmp_path, line))
    with pytest.raises(ConfigError, match=text):
        draw(Jsonl, query)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/no/such.*cannot be read"):
        draw(Jsonl, DatasetQuery(num_prompts=1, path="/no/such"))


def talk(question: str, answer: str) -> dict[str, Any]:
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"conversations": [*turns, {"from": "human", "value": "more"}]}


def test_sharegpt(tmp_path: Path, tokenizer: Tokenizer) -> None:
    question, answer = "What is the capital of France?", "The capital of France is Paris."
    system = {"conversations": [{"from": "system", "value": "s"}, {"from": "gpt", "value": "t"}]}
    content = [talk(question, answer), talk("a", answer), talk("word " * 5000, answer), system, {}]
    path = file_of(tmp_path, json.dumps(content))
    query = DatasetQuery(num_prompts=3, path=path, tokenizer=tokenizer)
    drawn = draw(ShareGpt, query)
    assert {one.prompt for one in drawn} == {question}
    assert {one.prompt_tokens for one in drawn} == {len(tokenizer.encode(question))}
    assert {one.output_tokens for one in drawn} == {len(tokenizer.encode(answer))}
    assert {one.output_tokens for one in draw(ShareGpt, replace(query, output_tokens=2))} == {2}
    with pytest.raises(ConfigError, match="--tokenizer"):
        draw(ShareGpt, replace(query, tokenizer=None))


@pytest.mark.parametrize("content", ["{}", "[]", "[", json.dumps([talk("a", "b")])])
def test_a_file_without_conversations(content: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    query = DatasetQuery(num_prompts=1, path=file_of(tmp_path, content), tokenizer=tokenizer)
    with pytest.raises(ConfigError):
        draw(ShareGpt, query)


@pytest.mark.parametrize("plugin", [Jsonl, ShareGpt])
def test_files_object_to_what_they_cannot_give(plugin: Any) -> None:
    fits = DatasetQuery(num_prompts=1, path="x")
    assert plugin.why_not(fits) == []
    for changes in (
        {"input_tokens": 3},
        {"prefix_tokens": 3},
        {"range_ratio": 0.5},
        {"path": None},
    ):
        assert plugin.why_not(replace(fits, **changes)) != []
