"""ColPali, ColQwen2, ColModernVBERT: vectors of pages as pictures equal those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import LLM
from support.tiny_dual_encoders import picture
from support.tiny_pages import FAMILIES, page_vectors, write_pages

pytestmark = pytest.mark.e2e
QUERIES = ["what does the page say", "cat"]
SIZES = [(48, 48), (61, 33), (30, 90)]


def shown(image: Any) -> dict[str, Any]:
    """Return the prompt of a page."""
    return {"prompt": "", "multi_modal_data": {"image": image}}


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_equal_transformers(family: str, tmp_path: Path) -> None:
    """Pages of odd sizes in one batch, then queries."""
    model, processor = write_pages(tmp_path / "model", family)
    pages = [picture(*size, seed=at) for at, size in enumerate(SIZES)]
    with LLM(model=str(tmp_path / "model"), dtype="float32") as llm:
        found = llm.encode([shown(one) for one in pages], use_tqdm=False)
        asked = llm.encode(QUERIES, prompt_name="query", use_tqdm=False)
    for given, result in zip([*QUERIES, *pages], [*asked, *found], strict=True):
        expected = page_vectors(model, processor, given)
        np.testing.assert_allclose(result.outputs.data, expected, atol=1e-4)
