"""Which layers slide: each way of config.json to say it is read as transformers reads it, or
refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail_testing.harness import PagedModel, load_model
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.older_transformers import skip_where_older

TOKENS = list(range(3, 30))
KEYS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types",
        "sliding_window_pattern")  # fmt: skip
FIRST, SECOND = ["sliding_attention", "full_attention"], ["full_attention", "sliding_attention"]
ON: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 8}
CASES: dict[str, list[dict[str, Any]]] = {
    "Qwen2ForCausalLM": [
        {"sliding_window": 8},
        {**ON, "max_window_layers": 1},
        {**ON, "max_window_layers": 2, "layer_types": SECOND},
    ],
    "Qwen2MoeForCausalLM": [
        ON,
        {**ON, "max_window_layers": 0},
        {**ON, "max_window_layers": 1},
        {**ON, "layer_types": SECOND},
    ],
    "Qwen3MoeForCausalLM": [{"sliding_window": 8}, {**ON, "layer_types": SECOND}],
    "MistralForCausalLM": [
        {"sliding_window": 8},
        {"sliding_window": 8, "layer_types": FIRST},
        {"sliding_window": 8, "layer_types": None},
    ],
    "SmolLM3ForCausalLM": [
        {"sliding_window": 8},
        {"sliding_window": 8, "layer_types": FIRST},
        {**ON, "no_rope_layers": [1, 0]},
    ],
    "Gemma3ForCausalLM": [
        {"sliding_window": 8, "sliding_window_pattern": 2},
        {"sliding_window": 8, "_sliding_window_pattern": 1},
        {"sliding_window": 8, "layer_types": SECOND, "sliding_window_pattern": 1},
    ],
}


def written(folder: Path, family: str, settings: dict[str, Any]) -> Path:
    skip_where_older(family)
    path = write_tiny_checkpoint(folder, family, num_hidden_layers=2)
    file = path / "config.json"
    stored = {k: v for k, v in json.loads(file.read_text()).items() if k not in KEYS}
    file.write_text(json.dumps(stored | settings))
    return path


def logits(path: Path) -> torch.Tensor:
    (found,) = PagedModel(load_model(path, dtype="float32")).forward([(0, TOKENS)])
    return found


@pytest.mark.parametrize(
    ("family", "settings"),
    [(family, one) for family, several in CASES.items() for one in several],
    ids=str,
)
def test_the_layers_that_slide(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    import transformers

    path = written(tmp_path / "m", family, settings)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        wanted = model.eval()(torch.tensor([TOKENS]), use_cache=False).logits[0]
    assert (logits(path) - wanted).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"sliding_window": -1}, "which is not a number of tokens"),
        ({"sliding_window": "8"}, "which is not a number of tokens"),
        ({"sliding_window": 8, "layer_types": ["full_attention"]}, "kinds of 1 layers"),
        ({"sliding_window": 8, "layer_types": FIRST}, "use_sliding_window is off"),
    ],
    ids=str,
)
def test_what_says_nothing_of_a_window_is_refused(
    settings: dict[str, Any], what: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "m", "Qwen2ForCausalLM", settings)
    with pytest.raises(ConfigError, match=what):
        load_model(path)
