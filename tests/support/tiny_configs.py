"""A small config of any model type that transformers knows, and a random checkpoint of it.

Fields are shrunk by what their names say: widths, layers, heads, experts, vocabulary, windows and
the lists that have an entry a layer. Where a type's fields depend on one another in a way of their
own, `_OWN` states them. Needs transformers; reads nothing but its classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import DERIVED, write_tiny_tokenizer

MOST_PARAMETERS = 6_000_000
"""Of a checkpoint called tiny."""
HEADS, HEAD_SIZE, LAYERS, MOST_LAYERS = 4, 8, 2, 6
HIDDEN = HEADS * HEAD_SIZE

Json = dict[str, Any]

_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
_SIZES: dict[str, int] = {
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
         "encoder_attention_heads", "attention_heads", "num_encoder_attention_heads",
         "num_decoder_attention_heads", "swa_num_attention_heads", "linear_num_value_heads",
         "linear_num_heads", "index_n_heads"),
        HEADS,
    ),
    "linear_num_key_heads": 2,
    **dict.fromkeys(
        (*_LAYER_COUNTS, "decoder_layers", "encoder_layers", "num_encoder_layers",
         "num_decoder_layers", "depth"),
        LAYERS,
    ),
    **dict.fromkeys(
        ("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "swa_head_dim",
         "linear_key_head_dim", "linear_value_head_dim", "linear_head_dim", "index_head_dim",
         "kv_channels", "d_kv", "d_head", "dim_head", "attention_head_size", "mamba_head_dim",
         "mamba_d_head", "mamba_headdim", "rotary_dim", "state_size", "ssm_state_size",
         "mamba_d_state", "mamba_dt_rank", "time_step_rank"),
        HEAD_SIZE,
    ),
    "qk_head_dim": 2 * HEAD_SIZE,
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_dim", "word_embed_proj_dim",
         "attention_hidden_size", "lru_width", "embedding_size", "mamba_d_ssm",
         "backbone_hidden_size", "hidden_size_global"),
        HIDDEN,
    ),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4
    ),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k",
         "n_group", "num_expert_group"),
        2,
    ),
    "topk_group": 1,
    "first_k_dense_replace": 1,
    **dict.fromkeys(
        ("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size", "decoder_vocab_size"),
        VOCAB_SIZE,
    ),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "model_max_length",
         "max_target_positions", "context_length", "max_source_positions"),
        128,
    ),
    "original_max_position_embeddings": 64,
    **dict.fromkeys(
        ("sliding_window", "sliding_window_size", "window_size", "attention_window_size",
         "local_attention"),
        6,
    ),
    **dict.fromkeys(
        ("mamba_n_heads", "mamba_num_heads", "attention_chunk_size", "chunk_size",
         "mamba_chunk_size", "moe_intermediate_size", "hidden_size_per_layer_input",
         "q_lora_rank", "kv_lora_rank", "o_lora_rank", "laurel_rank"),
        16,
    ),
    "mamba_n_heads": 8,
    "mamba_num_heads": 8,
    "query_pre_attn_scalar": 24,
}  # fmt: skip
"""Field -> its size; never more than the type's own."""
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads",
             "swa_num_key_value_heads", "num_query_groups")  # fmt: skip
_TOKENS = {"bos": 0, "eos": 1, "pad": 2}
_WIDTH = re.compile(r"hidden|dim|size|rank|channels|dff|inner|ffn|d_ff|vocab|window|num_buckets")
_KEPT = re.compile(r"kernel|patch_size|image|crop|kv_shared|norm|^n_window|^input_dim")

_PLAIN_ROPE: Json = {"rope_type": "default", "rope_theta": 1e4}
_OWN: dict[str, Json] = {
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "dory": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        **{f"n_{part}_layers": 1 for part in ("input", "recurrent", "output")},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
    "deepseek_v4": {
        "o_groups": 2,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
            for kind, theta in (("main", 1e4), ("compress", 16e4))
        },
        "compress_rates": {
            "compressed_sparse_attention": 2,
            "heavily_compressed_attention": 4,
        },
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {"head_dim": 16},
    "falcon_h1": {"mamba_d_ssm": 64},
    "mamba2": {"num_heads": 8},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 16}},
    },
    "hunyuan_v1_dense": {"head_dim": HEAD_SIZE, "rope_parameters": _PLAIN_ROPE},
    "hunyuan_v1_moe": {"head_dim": HEAD_SIZE, "rope_parameters": _PLAIN_ROPE},
    "inkling2_loop_text": {
        "n_layers_per_attn_res_block": 1,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 2,
    },
    "longcat_flash": {"zero_expert_num": 3, "moe_topk": 3},
    "ministral": {"head_dim": HEAD_SIZE, "rope_parameters": _PLAIN_ROPE},
    "lfm2": {"layer_types": ["conv", "full_attention"], "full_attn_idxs": [1]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 16]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16, "hybrid_layer_ids": [2]},
}
"""Model type -> fields that its own rules ask for, laid over the shrunk ones."""
_SAVED_AS_NAMED = ("kimi_k25", "qianfan_ocr", "shieldgemma2")
"""Types whose checkpoints transformers reads but does not write: what it renames back are names
that no published checkpoint has (`blocks` for the `layers` of the text part)."""


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """Return a small config of a model type. Raises: ConfigError where it cannot be made small."""
    import transformers

    own = {**_OWN.get(model_type, {}), **overrides}
    try:
        kind = transformers.CONFIG_MAPPING[model_type]
        full = kind().to_dict()
        fields = {k: v for k, v in {**_shrunk(full), **own}.items() if k != "model_type"}
        if "is_decoder" in full:
            fields |= {"is_decoder": True, "add_cross_attention": False}
        return kind(**fields)
    except Exception as error:  # whatever its own checks raise
        raise ConfigError(f"no small config of {model_type}: {_told(error)}") from error


def write_tiny(folder: str | Path, model_type: str, **overrides: Any) -> Path:
    """Write a random checkpoint of transformers' class of a model type; return the folder.

    The class is the one for causal text generation, where there is none that for images and text.
    Raises: ConfigError where transformers' own class cannot be made small.
    """
    return _write(Path(folder), model_type, _auto_class(model_type).from_config, overrides)


def write_tiny_whole(
    folder: str | Path, model_type: str, architecture: str, **overrides: Any
) -> Path:
    """Write a random checkpoint of a class of transformers, whatever it takes beside text; return
    the folder. Raises: ConfigError where transformers' own class cannot be made small."""
    import transformers

    make = getattr(transformers, architecture)._from_config
    return _write(Path(folder), model_type, make, overrides)


def _write(folder: Path, model_type: str, make: Any, overrides: Json) -> Path:
    import torch

    config = tiny_config(model_type, **overrides)
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in make(config).parameters())
        if size > MOST_PARAMETERS:
            raise ConfigError(f"the small config of {model_type} still has {size} parameters.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(len(model_type))
            model = make(config)
            _stir(model)
            model.save_pretrained(folder, save_original_format=model_type not in _SAVED_AS_NAMED)
    except Exception as error:  # whatever transformers' own class raises
        raise ConfigError(f"no small checkpoint of {model_type}: {_told(error)}") from error
    write_tiny_tokenizer(folder)
    return folder


def _auto_class(model_type: str) -> Any:
    """Return what makes the class of a model type that generates text."""
    import transformers
    from transformers.models.auto import modeling_auto

    if model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModelForImageTextToText


def _told(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _stir(model: Any) -> None:
    """Move every parameter, and every stored buffer that does not follow from the config, away from
    its first value. Mutates: model"""
    import torch

    stored = model.state_dict(keep_vars=True).items()
    moved = {t.data_ptr(): t for name, t in stored if name.rpartition(".")[2] not in DERIVED}
    with torch.no_grad():
        for tensor in moved.values():
            if tensor.is_floating_point() and tensor.numel():
                tensor.add_(torch.randn(tensor.shape) * (0.1 if tensor.dim() == 1 else 0.2))


def _shrunk(fields: Mapping[str, Any]) -> Json:
    """Return the fields with small values, those of configs inside them too."""
    layers, kept = _layers_kept(fields)
    found: Json = {}
    for name, value in fields.items():
        if name in ("transformers_version", "torch_dtype", "dtype", "_name_or_path"):
            continue
        if name in _LAYER_COUNTS and isinstance(value, int) and layers:
            found[name] = len(kept)
        elif isinstance(value, list) and layers and len(value) == layers:
            found[name] = [_number(name, value[at], fields) for at in kept]
        elif name == "per_layer_config" and isinstance(value, dict):
            found[name] = {
                str(new): _shrunk(one) | ({"head_dim": 2 * HEAD_SIZE} if "head_dim" in one else {})
                for new, old in enumerate(kept)
                for at, one in value.items()
                if int(at) == old
            }
        elif isinstance(value, dict) and not any(isinstance(key, int) for key in value):
            found[name] = _rope(value) if "rope" in name else _shrunk(value)
        elif isinstance(value, list):
            found[name] = _list(name, value)
        else:
            found[name] = _number(name, value, fields)
    return found | _OWN.get(str(fields.get("model_type")), {})


def _layers_kept(fields: Mapping[str, Any]) -> tuple[int, list[int]]:
    """Return the number of layers of the full config, and which of them the small one has: the
    first of every sort, by the lists that have an entry a layer."""
    layers = next((fields[n] for n in _LAYER_COUNTS if isinstance(fields.get(n), int)), 0)
    lists = [v for v in fields.values() if isinstance(v, list) and len(v) == layers]
    words = [v for v in lists if layers and isinstance(v[0], str)]
    kept: list[int] = []
    for listed in words or lists:
        kept += [listed.index(kind) for kind in dict.fromkeys(map(_hashable, listed))
                 if kind in listed]  # fmt: skip
    kept = sorted({*kept, 0, min(1, layers - 1)})[:MOST_LAYERS] if layers else []
    return layers, kept or [0, 1]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _number(name: str, value: Any, fields: Mapping[str, Any]) -> Any:
    """Return a field's small value."""
    if isinstance(value, list):
        return _list(name, value)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    token = re.fullmatch(r"(\w+?)_(token_id|token_index|index)", name)
    if token:
        return min(value, _TOKENS.get(token[1], 3)) if value >= 0 else value
    if name in _KV_HEADS:
        return min(value, _kv_heads(value, fields))
    if name in _SIZES:
        return min(value, _SIZES[name])
    if value > 48 and _WIDTH.search(name) and not _KEPT.search(name):
        return 48 if re.search("intermediate|ffn|feed", name) else HIDDEN
    return value


def _kv_heads(value: int, fields: Mapping[str, Any]) -> int:
    """Return as many as query heads where the type has as many, else half of them."""
    names = ("num_attention_heads", "n_head", "n_heads", "num_heads", "swa_num_attention_heads")
    heads = next((fields[n] for n in names if isinstance(fields.get(n), int)), 0)
    return HEADS if value == heads else HEADS // 2


def _list(name: str, value: list[Any]) -> list[Any]:
    if name == "eos_token_id":
        return [_TOKENS["eos"]]
    if name == "mrope_section":
        return [2, 1, 1][: len(value)]
    return value


def _rope(value: Mapping[str, Any]) -> Json:
    """Return the settings of rotary positions, those by kind of layer too."""
    found: Json = {}
    for name, one in value.items():
        if isinstance(one, dict):
            found[name] = _rope(one)
        elif name == "original_max_position_embeddings":
            found[name] = 64
        else:
            found[name] = _list(name, one) if isinstance(one, list) else one
    return found
