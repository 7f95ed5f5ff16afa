"""What is particular to GGUF families of 2025 and 2026: orders of heads, and blocks that draft."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dovetail import LLM
from dovetail.errors import ConfigError
from dovetail_plugins.gguf._config import config_of, read_config
from dovetail_plugins.gguf.reading.file import read_model
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support import gguf_recent
from support.dequantized import found_logprobs, wanted_logprobs
from support.gguf_cases import CASES
from support.gguf_files import write_gguf
from support.gguf_models import (
    checkpoint,
    loaded,
    logits_of,
    prompt,
    reference,
    transformers_model,
    write_meant,
)

pytest.importorskip("gguf")

PROMPTS = [list(range(3, 30)), [40, 41, 42]]


@pytest.mark.parametrize(("kind", "is_tiled"), [("Q4_K", True), ("Q8_0", False), ("F16", False)])
def test_value_heads_in_blocks_of_any_size(kind: str, is_tiled: bool, tmp_path: Path) -> None:
    """Columns of 32 numbers a head: a block of 256 numbers holds eight heads."""
    name, changes, wide = CASES["qwen35"]
    folder = write_tiny_checkpoint(tmp_path / "hf", name, **{**changes, **wide})
    file, tokens = tmp_path / "model.gguf", prompt(24)
    meant = write_gguf(folder, file, lambda tensor: kind if "ssm_out" in tensor else "Q8_0")
    config = read_config(file)
    assert config is not None
    assert config["linear_heads_are_tiled"] is is_tiled
    right = reference(folder, meant, tokens, tmp_path / "meant")
    (got,) = loaded(file).forward([(0, tokens)])
    assert (got - right).abs().max() <= 1e-3 * (right.max() - right.min())


def test_blocks_that_draft_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the checkpoint's drafting layers are not known: the model is the same, and the file's
    further block is named in one line."""
    name, changes, _ = CASES["exaone-moe"]
    folder = checkpoint(tmp_path / "hf", name, **changes)
    file, tokens = tmp_path / "model.gguf", prompt(24)
    extra = {
        f"blk.2.{word}.weight": np.ones((8, 8), dtype=np.float32)
        for word in ("nextn.eh_proj", "nextn.enorm", "attn_q", "something_new")
    }
    write_gguf(
        folder, file, extra=extra, settings={"exaone-moe.nextn_predict_layers": 1}, num_blocks=3
    )
    with caplog.at_level(logging.WARNING):
        (got,) = loaded(file).forward([(0, tokens)])
    right = logits_of(transformers_model(folder), tokens)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-4)
    (said,) = {one.getMessage() for one in caplog.records if str(file) in one.getMessage()}
    assert "1 block(s)" in said
    assert "draft" in said


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    name, changes, _ = CASES["qwen35"]
    folder = write_tiny_checkpoint(tmp_path / "hf", name, **changes)
    file = tmp_path / "model.gguf"
    write_gguf(folder, file, settings={"qwen35.ssm.group_count": 4})
    with pytest.raises(ConfigError, match=r"6 value heads .*4 key heads"):
        read_config(file)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", gguf_recent.CASES)
def test_settings_that_are_missing_or_wrong_are_named(case: str, tmp_path: Path) -> None:
    """Whatever one setting is, the config is made or an error names the file."""
    name, changes, _ = CASES[case]
    folder = checkpoint(tmp_path / "hf", name, **changes)
    file = tmp_path / "model.gguf"
    write_gguf(folder, file, architecture=gguf_recent.OF_CASE.get(case, ""))
    model = read_model(file)
    own = [key for key in model.settings if not key.startswith(("tokenizer.", "general."))]
    for key in own:
        rest = {other: value for other, value in model.settings.items() if other != key}
        wrong = [{key: value} for value in (0, -1, 3, 0.5, True, "x", [], [1], [0, 0, 0, 0], ["x"])]
        for settings in ({}, *wrong):
            try:
                config_of(replace(model, settings=rest | settings))
            except ConfigError as error:
                assert str(file) in str(error)


@pytest.mark.parametrize("case", ["qwen35", "gemma4", "ministral3", "nemotron_h_moe"])
def test_the_engine_computes_what_transformers_does(case: str, tmp_path: Path) -> None:
    """From the file alone, quantized: states, two sizes of heads, layers of transformers."""
    name, changes, wide = CASES[case]
    folder = checkpoint(tmp_path / "hf", name, **{**changes, **wide})
    file = tmp_path / "model.gguf"
    architecture = gguf_recent.OF_CASE.get(case, "")
    meant = write_gguf(folder, file, lambda tensor: "Q4_K", architecture=architecture)
    write_meant(folder, meant, tmp_path / "meant")
    with LLM(
        model=str(file),
        num_gpu_blocks_override=16,
        max_model_len=64,
        max_logprobs=-1,
        use_tqdm_on_load=False,
        kv_cache_dtype="float32",
        dtype="float32",
        plugin_options={"quantization": {"activations": "float"}},
    ) as llm:
        found = found_logprobs(llm, PROMPTS)
    wanted, spread = wanted_logprobs(transformers_model(tmp_path / "meant"), PROMPTS)
    assert (found - wanted).abs().max() <= 5e-3 * spread
