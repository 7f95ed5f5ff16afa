"""Real models quantized from 16 bits: no further from the original than by llama.cpp's own tool.

Run by `make test-real LIBLLAMA=FILE`, where FILE is llama.cpp's libllama.so.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(7200)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["gemma-3-270m-q4_k_m", "qwen2.5-coder-0.5b-instruct"])
def test_files_are_no_further_from_the_original_than_llama_cpps(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without and with importances; every tensor has llama.cpp's type."""
    monkeypatch.syspath_prepend(str(ROOT))
    quality = importlib.import_module("benchmarks.gguf_quality")
    named, libllama = os.environ.get("REAL_MODELS"), os.environ.get("LIBLLAMA")
    assert named, "REAL_MODELS names no folder: run `make test-real`"
    if os.environ.get("MODEL"):
        pytest.skip(f"MODEL names another checkpoint than {name}")
    if not libllama:
        pytest.skip("LIBLLAMA names no libllama.so of llama.cpp")
    words = [str(Path(named, f"{name}.gguf")), "--libllama", libllama, "--windows", "2"]
    words += ["--work", str(Path(named, "quality")), "--methods", "q4_k_m;iq4_xs"]
    rows = quality.measured(quality.parser().parse_args(words))
    assert [row["importances"] for row in rows] == [False, False, True, True]
    assert [row["missed"] for row in rows] == [[], [], [], []], quality.table(rows)
