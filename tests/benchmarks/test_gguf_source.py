"""Weights that benchmarks.gguf_source changes: other numbers, the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gguf_source import BLOCK, spread, widened
from safetensors.torch import load_file

from dovetail_testing.tiny.models import write_tiny_checkpoint

TOKENS = torch.tensor([[3, 9, 27, 14, 5, 200]])


@pytest.mark.parametrize(
    ("name", "sizes", "heads"),
    [
        ("Qwen2ForCausalLM", {"hidden_size": 896, "num_attention_heads": 14,
                              "num_key_value_heads": 2, "intermediate_size": 300}, 16),
        ("Qwen3ForCausalLM", {"hidden_size": 192, "num_attention_heads": 8, "head_dim": 32}, 8),
        ("LlamaForCausalLM", {"hidden_size": 256}, None),
        ("Gemma3ForCausalLM", {}, None),
    ],
)  # fmt: skip
def test_the_model_computes_the_same(
    name: str, sizes: dict[str, Any], heads: int | None, tmp_path: Path
) -> None:
    import transformers

    folder = write_tiny_checkpoint(tmp_path, name, **sizes)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        for norm in (one for n, one in model.named_parameters() if n.endswith("norm.weight")):
            norm += torch.rand(norm.shape) * 0.2  # norms of random checkpoints are ones
        right = model(TOKENS).logits
        state, config = dict(model.state_dict()), model.config
        before = {key: one.clone() for key, one in state.items()}
        spread(state, config, 1)
        widened(state, config)
        made = type(model)(config)
        made.load_state_dict(state)
        found = made(TOKENS).logits
    assert (found - right).abs().max() <= 1e-4 * (right.max() - right.min())
    changed = {key for key, one in state.items() if "_proj.weight" in key
               and not torch.equal(one[: len(before[key])], before[key])}  # fmt: skip
    assert len(changed) == 7 * config.num_hidden_layers
    if heads is not None:
        assert config.num_attention_heads == heads
        rows = {one.shape[1] for key, one in state.items() if "_proj.weight" in key}
        assert all(row % BLOCK == 0 for row in rows), rows
    assert load_file(folder / "model.safetensors").keys() <= state.keys()
