"""Odd checkpoints: sizes that are rounded or renamed, and files in a tool's own form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail_plugins.load_formats.pt import Pt
from dovetail_plugins.model_types.bailing_hybrid import delta_sizes
from dovetail_plugins.model_types.xlstm import inner_size


@pytest.mark.parametrize("factor", [2.667, 2.6875, 2.01, 2.0, 1.3, 3.0001])
@pytest.mark.parametrize("hidden", [32, 48, 64, 256, 4096])
def test_the_mlp_of_xlstm_is_as_large_as_transformers_makes_it(hidden: int, factor: float) -> None:
    from transformers.models.xlstm.configuration_xlstm import round_up_to_next_multiple_of

    config = {
        "hidden_size": hidden,
        "ffn_proj_factor": factor,
        "ffn_round_up_to_multiple_of": 64,
    }
    assert inner_size(config) == round_up_to_next_multiple_of(hidden * factor, 64)


def test_ling_3_as_transformers_saves_it_again(tmp_path: Path) -> None:
    """It says `head_dim` of the rotated part, and `linear_head_dim` of the delta layers."""
    import transformers

    made = transformers.AutoConfig.for_model(
        "bailing_hybrid", head_dim=16, qk_rope_head_dim=4, num_attention_heads=2
    )
    made.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["head_dim"] == 4
    sizes = delta_sizes(config)
    assert (sizes.key_size, sizes.value_size, sizes.key_heads) == (16, 16, 2)


def test_a_model_that_hqq_saved_itself_has_a_way_out(tmp_path: Path) -> None:
    layer = {"W_q": torch.zeros(4, dtype=torch.uint8), "meta": {"nbits": 4, "group_size": 64}}
    torch.save({"model.layers.0.mlp.up_proj": layer}, tmp_path / "qmodel.pt")
    with pytest.raises(ConfigError, match="as hqq saves it") as caught:
        list(Pt(Pt.Options()).tensors(Checkpoint(path=str(tmp_path))))
    assert "HqqConfig" in str(caught.value.fix)
