"""TorchSdpa's own paths: small gathers, query chunks, 8-bit caches, torch not imported early."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from dovetail.interfaces.attention import AttentionQuery
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.plugin import NoOptions
from dovetail.runner.model_runner import ModelRunner
from dovetail_plugins.attention import _torch_paged
from dovetail_plugins.attention.torch_sdpa import TorchSdpa
from dovetail_testing.attention_cases import CASES, AttentionStep
from dovetail_testing.scripted_steps import Driver, DriveRequest, collect
from dovetail_testing.tiny.transformer import WINDOW_TOKENS, tiny_layout, tiny_run

CPU = torch.device("cpu")
SDPA = Selection(
    kind="attention_backend",
    name="torch_sdpa",
    target="dovetail_plugins.attention.torch_sdpa:TorchSdpa",
)


def query(**changes: Any) -> AttentionQuery:
    fields = {"device": "cpu", "dtype": "float32", "kv_dtype": "float32"} | changes
    return AttentionQuery(head_size=32, block_tokens=16, **fields)


@pytest.mark.sampled(every=2)
@pytest.mark.few_isa
@pytest.mark.parametrize("name", [n for n in CASES if n.endswith("float32")])
@pytest.mark.parametrize("gather_bytes", [1, 20_000], ids=["row_by_row", "few_rows"])
def test_decodes_in_several_chunks(
    name: str, gather_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_torch_paged, "GATHER_BYTES", gather_bytes)
    monkeypatch.setattr(_torch_paged, "QUERY_CHUNK_TOKENS", 7)
    monkeypatch.setattr(_torch_paged, "MAX_SCORES", 500)
    AttentionStep(TorchSdpa(NoOptions()), CASES[name], CPU).check()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_cache(dtype: torch.dtype) -> None:
    """Keys far outside the range are clamped, not turned into NaN."""
    k = torch.tensor([[[1e6, -1e6, 0.5, 1.0]]])
    slots = torch.zeros(2, 1, 4, 1, 4, dtype=torch.uint8).view(dtype)
    _torch_paged.write(slots, k, k / 2, torch.tensor([2]))
    found, half = _torch_paged.read(slots, torch.tensor([2]), torch.float32)
    largest = torch.finfo(dtype).max
    assert found.tolist() == [[[largest, -largest, 0.5, 1.0]]]
    assert half[0, 0, 2:].tolist() == [0.25, 0.5]


def test_why_not_names_the_reason() -> None:
    assert TorchSdpa.why_not(query(uses_window=True, uses_sinks=True, uses_alibi=True)) == []
    assert TorchSdpa.why_not(query(uses_chunk=True)) == []
    assert "int8" in TorchSdpa.why_not(query(kv_dtype="int8"))[0]


@pytest.mark.parametrize("window", [None, WINDOW_TOKENS])
def test_a_model_draws_the_same_as_by_the_definition(window: int | None) -> None:
    asks = [
        DriveRequest(request_id=str(n), prompt_ids=tuple(range(n)), joins_at=n % 3)
        for n in (1, 9, 20, 33)
    ]
    drawn = []
    for attention in (None, SDPA):
        made = ModelRunner(tiny_run(attention=attention, hf_config={"window": window}), CPU)
        made.load()
        layout = tiny_layout(list(made.kv_layers()))
        made.allocate(layout)
        plans = Driver(layout).plans(asks, chunk_tokens=8)
        outputs = collect((plan, made.step(plan)) for plan in plans)
        drawn.append({name: output.token_ids for name, output in outputs.items()})
    assert drawn[0] == drawn[1]


@pytest.mark.any_isa
@pytest.mark.parametrize(
    "module",
    [
        "attention.torch_sdpa",
        "executors.uni",
        "workers.cpu",
        "workers.cuda",
        "logits_processors.allowed_token_ids",
        "logits_processors.bad_words",
        "logits_processors.logit_bias",
        "logits_processors.min_p",
        "logits_processors.min_tokens",
    ],
)
def test_naming_a_plugin_does_not_import_torch(module: str) -> None:
    """Choosing plugins happens in processes that never compute."""
    code = f"import sys, dovetail_plugins.{module}; sys.exit('torch' in sys.modules)"
    path = os.pathsep.join(p for p in sys.path if p)
    env = {**os.environ, "PYTHONPATH": path}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
