"""The same tiny files in llama.cpp: it reads their layouts as dovetail does.

Runs where llama-cpp-python is installed: it has no wheel on PyPI, and is in no extra.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support import gguf_recent
from support.gguf_cases import CASES
from support.gguf_files import write_gguf
from support.gguf_models import checkpoint, loaded, prompt

pytest.importorskip("gguf")
llama_cpp = pytest.importorskip(
    "llama_cpp", reason="llama-cpp-python is not installed", exc_type=ImportError
)

BY_LAYERS = {"deepseek2-lite", "exaone4", "stablelm-parallel"}
"""Cases in which llama.cpp goes by the published models' numbers of layers."""
LEAST_STEP = {"nemotron_h"}
"""Cases whose time steps have a least value in transformers and here, and none in llama.cpp."""
BITS = 11
"""llama.cpp keeps keys, values and products in float16 here and there."""


def logits_there(file: Path, tokens: list[int]) -> torch.Tensor:
    """Return llama.cpp's logits of every position."""
    model = llama_cpp.Llama(
        str(file),
        n_ctx=64,
        n_threads=1,
        logits_all=True,
        flash_attn=False,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )
    try:
        model.eval(tokens)
        scores: Any = model.scores[: len(tokens)]
        return torch.tensor(scores)
    finally:
        model.close()


@pytest.mark.parametrize("case", sorted(set(CASES) - BY_LAYERS - LEAST_STEP))
def test_llama_cpp_says_the_same(case: str, tmp_path: Path) -> None:
    name, changes, wide = CASES[case]
    folder = checkpoint(tmp_path / "hf", name, **{**changes, **wide})
    file, tokens = tmp_path / "model.gguf", prompt(24)
    write_gguf(folder, file, architecture=gguf_recent.OF_CASE.get(case, ""))
    (got,) = loaded(file).forward([(0, tokens)])
    there = logits_there(file, tokens)
    span = got.max() - got.min()
    assert (got - there).abs().max() <= span * 2.0**-BITS
