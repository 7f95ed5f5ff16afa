"""BenchDataset: as many prompts as requested, the same ones every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dovetail.interfaces.bench_dataset import BenchDataset, BenchPrompt, DatasetQuery
from dovetail_testing.fakes.engine import ByteTokenizer


@pytest.fixture
def query(plugin: Any, tmp_path: Path) -> DatasetQuery:
    """Return a query that the dataset can answer, with its sample as the file."""
    path = None
    if plugin.sample:
        path = tmp_path / "sample"
        path.write_text(plugin.sample, encoding="utf-8")
    return DatasetQuery(
        num_prompts=9,
        seed=3,
        path=None if path is None else str(path),
        tokenizer=ByteTokenizer(None, ""),
        needs_text=True,
    )


def draw(plugin: Any, query: DatasetQuery) -> list[BenchPrompt]:
    """Return the prompts that a new object of the dataset draws."""
    dataset: BenchDataset = plugin(plugin.Options())
    return dataset.draw(query)


class TestBenchDataset:
    """Clauses of datasets."""

    kind = "bench_dataset"

    def test_answers_its_own_query(self, plugin: Any, query: DatasetQuery) -> None:
        """It does not object to a query with its own sample."""
        assert plugin.why_not(query) == []

    @pytest.mark.parametrize("num_prompts", [1, 9])
    def test_gives_what_was_asked(self, plugin: Any, query: DatasetQuery, num_prompts: int) -> None:
        """As many prompts as requested, none empty, each requesting at least one token."""
        drawn = draw(plugin, replace(query, num_prompts=num_prompts))
        assert len(drawn) == num_prompts
        assert all(one.prompt and one.output_tokens >= 1 for one in drawn)

    def test_draws_the_same_again(self, plugin: Any, query: DatasetQuery) -> None:
        """Two objects, and one object twice, draw the same prompts."""
        dataset: BenchDataset = plugin(plugin.Options())
        assert dataset.draw(query) == dataset.draw(query) == draw(plugin, query)

    def test_more_prompts_add_to_the_end(self, plugin: Any, query: DatasetQuery) -> None:
        """A longer draw begins with the shorter one."""
        longer = draw(plugin, replace(query, num_prompts=13))
        assert longer[:9] == draw(plugin, query)

    def test_output_length_is_kept(self, plugin: Any, query: DatasetQuery) -> None:
        """A requested length overrides the dataset's own."""
        drawn = draw(plugin, replace(query, output_tokens=5))
        assert {one.output_tokens for one in drawn} == {5}

    def test_text_is_text(self, plugin: Any, query: DatasetQuery) -> None:
        """If text is required no token ids come, and lengths are the tokenizer's count."""
        tokenizer = ByteTokenizer(None, "")
        for one in draw(plugin, query):
            assert isinstance(one.prompt, str)
            assert one.prompt_tokens in (None, len(tokenizer.encode(one.prompt)))
