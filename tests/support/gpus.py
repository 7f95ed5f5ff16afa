"""Engines on a GPU, on a CPU, and on a fake GPU where there is no real one (fake_cuda says what it
finds). Several processes may share a GPU: an engine takes as many KV blocks as it asks for."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch

from dovetail import LLM

CUDA, CPU, FAKE = "cuda", "cpu", "fake"
HAS_GPU = torch.cuda.is_available()
NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="torch finds no CUDA device"),
]
NEEDS_NONE = pytest.mark.skipif(
    HAS_GPU or importlib.util.find_spec("triton") is None,
    reason="a fake GPU needs Triton, and no real one beside it",
)
ON_GPU = [pytest.param(CUDA, marks=NEEDS_GPU), pytest.param(FAKE, marks=NEEDS_NONE)]
"""Where a test runs, as its parameter."""
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 96,
    "max_num_seqs": 8,
    "block_size": 16,
    "num_gpu_blocks_override": 64,
    "use_tqdm_on_load": False,
}


@contextmanager
def engine(where: str, model: object, **flags: Any) -> Iterator[LLM]:
    """Open an engine on one of the three."""
    given: dict[str, Any] = {"device": where}
    with ExitStack() as stack:
        if where == FAKE:
            from support.fake_cuda import FakeCuda, using

            stack.enter_context(using(FakeCuda()))
            given = {"worker_cls": "support.fake_cuda:FakeCudaWorker"}
            given["attention_backend"] = "torch_sdpa"
        yield stack.enter_context(LLM(model=str(model), **(FLAGS | given | flags)))
