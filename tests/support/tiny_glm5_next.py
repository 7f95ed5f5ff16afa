"""Random checkpoints of GLM-5-Next, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail_testing.tiny.models import randomize, write_tiny_tokenizer
from dovetail_testing.tiny.sizes import COMMON, LATENT

LINEAR, INDEXED = "linear_attention", "indexed_attention"
_NAMES = (
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "n_routed_experts"),
    *("n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "num_key_value_heads"),
)
TEXT: dict[str, Any] = {
    **COMMON,
    **{name: LATENT[name] for name in _NAMES},
    "num_hidden_layers": 4,
    "layer_types": [LINEAR, INDEXED, INDEXED, LINEAR],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "indexer_types": ["full", "full", "shared", "full"],
    "swiglu_limit": 0.3,
    "index_topk": 12,
    "index_kpool": 4,
    "index_head_dim": 16,
    "index_n_heads": 16,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 5,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "depth": 1,
    "num_heads": 4,
    "out_hidden_size": 32,
}


def write(folder: Path, **overrides: Any) -> Path:
    """Write a checkpoint whose queries pick 3 pools of 4 tokens; return the folder. `overrides`
    are fields of the text part's config."""
    import torch
    import transformers

    config = transformers.Glm5NextConfig(text_config={**TEXT, **overrides}, vision_config=_VISION)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = transformers.Glm5NextForConditionalGeneration(config)
    randomize(model, seed=5)
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    return folder
