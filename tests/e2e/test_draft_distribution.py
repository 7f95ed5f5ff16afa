"""Sampled answers are distributed as the model says, whatever drafted them: judged by transformers.

`python -m support.draft_draws` does the same with 100,000 draws of every drafter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("dovetail_plugins")

from support.draft_draws import LIMIT, SORTS, TYPICAL, chi_square, draw, places, write_model

DRAWS = 4096


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("draws") / "model")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ngram", "suffix", "draft_model", "draft_model, sampled"])
def test_drafts_keep_the_distribution(name: str, model: Path, tmp_path: Path) -> None:
    told, share = draw(model, SORTS[name](model, tmp_path), DRAWS)
    assert share > 0
    assert chi_square(places(model, told)) < LIMIT


@pytest.mark.slow
def test_an_acceptance_that_leans_towards_drafts_is_found_out(model: Path, tmp_path: Path) -> None:
    told, _ = draw(model, {**SORTS["draft_model"](model, tmp_path), **TYPICAL}, DRAWS)
    assert chi_square(places(model, told)) > 2 * LIMIT
