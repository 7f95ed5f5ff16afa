"""The config.json of decoders of 2021 to 2024 that few later models follow, from a GGUF file's
settings. Some have the arithmetic of a family with another name, and are read as that. Imports no
torch.

Source: the converters of llama.cpp (https://github.com/ggml-org/llama.cpp/tree/master/conversion).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail_plugins.gguf.families.family import Family, FamilyNames, joined_mlp_rows
from dovetail_plugins.gguf.families.layouts import (
    BLOCK,
    FUSED,
    LATENT,
    MIXTRAL,
    MOE,
    QKV,
    SHARED,
)
from dovetail_plugins.gguf.families.parts import (
    common,
    gated,
    grouped_experts,
    layer_norm_eps,
    matrix_rows,
    rope,
)
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.reading.metadata import Settings
from dovetail_plugins.gguf.reading.older import say_once

if TYPE_CHECKING:
    import torch

PUBLISHED_SCALE = 1.243163121016122
"""What Phi-3.5-MoE's config.json multiplies cos and sin by. Converters write another number, which
follows from the lengths."""
PUBLISHED_LENGTHS = (4096, 131072)
ROUTER_NOISE = 0.01
"""Of all published Phi MoE: files do not say it."""


def _phimoe(settings: Settings) -> dict[str, Any]:
    more = {
        "num_local_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "router_jitter_noise": ROUTER_NOISE,
        "attention_bias": settings.has("attn_q.bias") or settings.has("attn_qkv.bias"),
        "lm_head_bias": settings.tensor("output.bias") is not None,
    }
    config = gated(settings, "phimoe", "PhimoeForCausalLM", **more)
    scaling = config["rope_scaling"]
    if scaling is not None:
        length = settings.number(".context_length")
        trained = scaling.get("original_max_position_embeddings") or length
        is_published = (trained, length) == PUBLISHED_LENGTHS
        scale = PUBLISHED_SCALE if is_published else scaling.get("attention_factor", 1.0)
        config["rope_scaling"] = {
            **scaling,
            "original_max_position_embeddings": trained,
            "long_mscale": scale,
            "short_mscale": scale,
        }
    return config


def _gptj(settings: Settings) -> dict[str, Any]:
    return {
        "model_type": "gptj",
        "architectures": ["GPTJForCausalLM"],
        "n_positions": settings.number(".context_length"),
        "n_inner": settings.number(".feed_forward_length"),
        "rotary_dim": settings.number(".rope.dimension_count"),
        "layer_norm_epsilon": layer_norm_eps(settings),
        "activation_function": "gelu_new",
    }


LARGE_BAICHUAN = 40
"""The layers of Baichuan 13B, which has ALiBi: files do not say it."""
BAICHUAN2_TOKENS = 125696


def _baichuan(settings: Settings) -> dict[str, Any]:
    is_large = settings.number(".block_count") == LARGE_BAICHUAN
    more = {"position_embedding_type": "alibi"} if is_large else {}
    return gated(settings, "baichuan", "BaichuanForCausalLM", **more)


def _baichuan_names(model: GgufModel) -> FamilyNames | None:
    """Return the names of Baichuan 2, the rows of whose head are divided by their lengths."""
    head = next((one for one in model.extents if one.name == "output.weight"), None)
    is_second = head is not None and head.shape[0] == BAICHUAN2_TOKENS
    whole = frozenset({"output"})
    return FamilyNames(block=BLOCK, turns_heads=True, whole=whole) if is_second else None


def _refact(settings: Settings) -> dict[str, Any]:
    # Llama with ALiBi, as Baichuan 13B.
    more = {"position_embedding_type": "alibi"}
    return gated(settings, "baichuan", "BaichuanForCausalLM", **more)


def _minicpm3(settings: Settings) -> dict[str, Any]:
    turned = settings.number(".rope.dimension_count")
    out, heads = settings.first("attn_output.weight"), settings.number(".attention.head_count")
    more = {
        "head_dim": turned,
        "kv_lora_rank": settings.number(".attention.kv_lora_rank"),
        "q_lora_rank": settings.find(".attention.q_lora_rank", int),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": settings.number(".attention.key_length") - turned,
        "v_head_dim": out.shape[-1] // heads or None if out else None,
        "partial_rotary_factor": 1.0,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    }
    return gated(settings, "minicpm3", "MiniCPM3ForCausalLM", **more)


def _deepseek(settings: Settings) -> dict[str, Any]:
    # Ling 1 has the same layers, and weights that sum to one.
    sums_to_one = bool(settings.find(".expert_weights_norm", bool))
    more = {**grouped_experts(settings), "norm_topk_prob": sums_to_one}
    return gated(settings, "deepseek", "DeepseekForCausalLM", **more)


def _deci(settings: Settings) -> dict[str, Any]:
    heads = settings.per_block(".attention.head_count")
    groups = settings.per_block(".attention.head_count_kv")
    inner = settings.per_block(".feed_forward_length")
    whole = max(heads)
    blocks = [
        {
            "attention": {
                "n_heads_in_group": whole // group if group else None,
                "no_op": not count,
                "replace_with_linear": bool(count and not group),
            },
            "ffn": {"intermediate_size": size, "no_op": not size},
        }
        for count, group, size in zip(heads, groups, inner, strict=True)
    ]
    return {
        "model_type": "nemotron-nas",
        "architectures": ["DeciLMForCausalLM"],
        "block_configs": blocks,
        "intermediate_size": next(filter(None, inner), None),
        "rms_norm_eps": settings.find(".attention.layer_norm_rms_epsilon", float) or 1e-6,
        "attention_bias": settings.has("attn_output.bias"),
        **rope(settings),
    }


def _deci_rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the rows of the first matrices of a kind: those of other blocks may have others."""
    blocks, size = config["block_configs"], config["head_dim"]
    groups = (block["attention"]["n_heads_in_group"] for block in blocks)
    heads = config["num_attention_heads"]
    keys = next((heads // group * size for group in groups if group), None)
    return {
        "ffn_up.weight": config["intermediate_size"],
        "attn_q.weight": heads * size,
        "attn_k.weight": keys,
    }


def _turned(model: GgufModel, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of heads whose pairs (2 i, 2 i + 1) become (i, i + half); blocks differ in the
    number of heads."""
    size = common(Settings(model))["head_dim"]
    return rows.view(-1, size // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


BITNET2_TOKENS = 128256
"""The vocabulary of Microsoft's BitNet b1.58 2B4T, whose activation early files do not state."""


def _bitnet(settings: Settings) -> dict[str, Any]:
    act = settings.find(".hidden_activation", str)
    if act is None:
        is_second = matrix_rows(settings, "token_embd.weight") == BITNET2_TOKENS
        act = "relu2" if is_second else "silu"
        what = f"hidden_activation is not in the file; {act} is used, by its vocabulary."
        say_once(str(settings.model.path), what)
    return gated(settings, "bitnet", "BitNetForCausalLM", hidden_act=act)


def _chatglm(settings: Settings) -> dict[str, Any]:
    has_bias = settings.has("attn_qkv.bias") or settings.has("attn_q.bias")
    pad = settings.find("tokenizer.ggml.padding_token_id", int)
    more = {"attention_bias": has_bias, "pad_token_id": pad}
    return gated(settings, "glm", "GlmForCausalLM", **more)


def _qwen(settings: Settings) -> dict[str, Any]:
    # Its setting counts the rows of gate and up together.
    both, up = settings.number(".feed_forward_length"), settings.first("ffn_up.weight")
    inner = both if up is not None and up.shape[0] == both else both // 2
    more = {"intermediate_size": inner, "use_sliding_window": False}
    return gated(settings, "qwen2", "Qwen2ForCausalLM", **more)


def _orion(settings: Settings) -> dict[str, Any]:
    # Llama with layer norms, as StableLM.
    more = {
        "layer_norm_eps": layer_norm_eps(settings),
        "use_qkv_bias": False,
        "partial_rotary_factor": 1.0,
    }
    return gated(settings, "stablelm", "StableLmForCausalLM", **more)


def _llama(settings: Settings) -> dict[str, Any]:
    has_bias = settings.has("attn_output.bias")
    return gated(settings, "llama", "LlamaForCausalLM", attention_bias=has_bias)


def _maincoder(settings: Settings) -> dict[str, Any]:
    # Llama with heads that are normed after rotation, as HunYuan.
    return gated(settings, "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", attention_bias=False)


def _codeshell(settings: Settings) -> dict[str, Any]:
    return {
        "model_type": "starcoder2",
        "architectures": ["Starcoder2ForCausalLM"],
        "intermediate_size": settings.number(".feed_forward_length"),
        "norm_epsilon": layer_norm_eps(settings),
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": settings.has("attn_qkv.bias") or settings.has("attn_q.bias"),
        "sliding_window": None,
        **rope(settings),
    }


def _jais2(settings: Settings) -> dict[str, Any]:
    return {
        "model_type": "jais2",
        "architectures": ["Jais2ForCausalLM"],
        "intermediate_size": settings.number(".feed_forward_length"),
        "layer_norm_eps": layer_norm_eps(settings),
        "hidden_act": "relu2",
        "attention_bias": settings.has("attn_q.bias"),
        "mlp_bias": settings.has("ffn_up.bias"),
        **rope(settings),
    }


def _dbrx(settings: Settings) -> dict[str, Any]:
    heads, turned = common(settings), rope(settings)
    return {
        "model_type": "dbrx",
        "architectures": ["DbrxForCausalLM"],
        "d_model": heads["hidden_size"],
        "n_heads": heads["num_attention_heads"],
        "n_layers": heads["num_hidden_layers"],
        "max_seq_len": heads["max_position_embeddings"],
        "attn_config": {
            "kv_n_heads": heads["num_key_value_heads"],
            "clip_qkv": settings.find(".attention.clamp_kqv", float),
            "rope_theta": turned["rope_theta"],
        },
        "ffn_config": {
            "ffn_hidden_size": settings.number(".feed_forward_length"),
            "moe_num_experts": settings.number(".expert_count"),
            "moe_top_k": settings.number(".expert_used_count"),
            "moe_normalize_expert_weights": 1.0,
        },
        **turned,
    }


def _qwen_rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    return {"ffn_up.weight": config["intermediate_size"]}


_DBRX = {
    "attn_norm": "norm_attn_norm.norm_1",
    "attn_qkv": "norm_attn_norm.attn.Wqkv",
    "attn_output": "norm_attn_norm.attn.out_proj",
    "attn_output_norm": "norm_attn_norm.norm_2",
    "ffn_gate_inp": "ffn.router.layer",
}
_DBRX_TRUNK = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
}
_DBRX_EXPERTS = {
    "ffn_gate_exps.weight": "ffn.experts.mlp.w1",
    "ffn_up_exps.weight": "ffn.experts.mlp.v1",
    "ffn_down_exps.weight": "ffn.experts.mlp.w2",
}
_BITNET = {"attn_sub_norm": "self_attn.attn_sub_norm", "ffn_sub_norm": "mlp.ffn_sub_norm"}
_ENDS = frozenset({"token_embd", "output"})
"""What stays whole in models that run over transformers."""
_TURNED = FamilyNames(block=BLOCK, turns_heads=True)
_TURNED_EXPERTS = FamilyNames(block=BLOCK | MOE | SHARED, turns_heads=True)
_PLAIN = FamilyNames(block=BLOCK)

_CONFIGS: Mapping[str, tuple[Callable[[Settings], dict[str, Any]], FamilyNames]] = {
    "phimoe": (_phimoe, FamilyNames(block=BLOCK | QKV | MIXTRAL, has_letters=True)),
    "gptj": (_gptj, _PLAIN),
    "baichuan": (_baichuan, _TURNED),
    "minicpm3": (_minicpm3, FamilyNames(block=BLOCK | LATENT, whole=_ENDS)),
    "deepseek": (_deepseek, _TURNED_EXPERTS),
    "bailingmoe": (_deepseek, _TURNED_EXPERTS),
    "deci": (_deci, FamilyNames(block=BLOCK, undo={"attn_q": _turned, "attn_k": _turned})),
    "bitnet": (_bitnet, FamilyNames(block=BLOCK | _BITNET, whole=_ENDS)),
    "bitnet-b1.58": (_bitnet, FamilyNames(block=BLOCK | _BITNET, whole=_ENDS)),
    "chatglm": (_chatglm, FamilyNames(block=BLOCK | FUSED)),
    "qwen": (_qwen, FamilyNames(block=BLOCK | QKV)),
    "dbrx": (
        _dbrx,
        FamilyNames(
            block=_DBRX,
            own=_DBRX_EXPERTS,
            trunk=_DBRX_TRUNK,
            blocks="transformer.blocks",
            whole=_ENDS,
            undo={
                "ffn_gate_exps.weight": lambda model, tensor: tensor.flatten(0, 1),
                "ffn_up_exps.weight": lambda model, tensor: tensor.flatten(0, 1),
                "ffn_down_exps.weight": lambda model, tensor: tensor.mT.flatten(0, 1),
            },
        ),
    ),
    "orion": (_orion, _PLAIN),
    "xverse": (_llama, _TURNED),
    "pangu-embedded": (_llama, _PLAIN),
    "maincoder": (_maincoder, _PLAIN),
    "refact": (_refact, _PLAIN),
    "codeshell": (_codeshell, FamilyNames(block=BLOCK | QKV)),
    "jais2": (_jais2, FamilyNames(block=BLOCK, whole=_ENDS)),
}
"""general.architecture -> its config.json, and its names."""
_MORE: Mapping[str, dict[str, Any]] = {
    "baichuan": {"other_names": _baichuan_names},
    "deci": {"rows": _deci_rows},
    "chatglm": {"rows": joined_mlp_rows},
    "qwen": {"rows": _qwen_rows},
}
FAMILIES = {
    name: Family(config=config, names=names, **_MORE.get(name, {}))
    for name, (config, names) in _CONFIGS.items()
}
"""general.architecture -> how files of it are read."""
