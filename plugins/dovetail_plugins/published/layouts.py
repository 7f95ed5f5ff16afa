"""Published text models with the layers of a class that is served, by other names of settings or
tensors.

Sources: config.json and the tensor names of the checkpoints on the Hugging Face Hub that each entry
names, and the configuration classes that they bring along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dovetail_plugins.published.layout import Json, Published, number, ratio, refuse

_SHARED = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"),
    *("quantization_config", "dtype", "torch_dtype", "use_cache", "num_labels", "id2label"),
)
"""Settings that have one name in all models."""
_RENAMED_FIX = "use a checkpoint of the same model that transformers has converted."


def _require(raw: Json, wanted: Mapping[str, Any]) -> None:
    """Raise ConfigError for a published setting that is not the supported one. Missing ones are
    supported."""
    for key, value in wanted.items():
        if raw.get(key, value) != value:
            raise refuse(
                f"{raw['architectures'][0]} is served with {key} {value}, not {raw[key]}.",
                key,
                _RENAMED_FIX,
            )


def _as(name: str, model_type: str, **more: Any) -> Callable[[Json], Json]:
    """Return what states another class and model type, and keeps all settings."""
    return lambda raw: {**raw, "architectures": [name], "model_type": model_type, **more}


def _qwen(raw: Json) -> Json:
    _require(raw, {"rotary_pct": 1.0, "no_bias": True, "scale_attn_weights": True})
    heads, inner = number(raw, "num_attention_heads"), number(raw, "intermediate_size")
    own = {
        "vocab_size": number(raw, "vocab_size"),
        "hidden_size": number(raw, "hidden_size"),
        "num_hidden_layers": number(raw, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": raw.get("kv_channels"),
        "intermediate_size": inner // 2,
        "rms_norm_eps": raw.get("layer_norm_epsilon", 1e-6),
        "rope_theta": raw.get("rotary_emb_base", 10000),
        "max_position_embeddings": raw.get("seq_length") or raw.get("max_position_embeddings"),
        "tie_word_embeddings": False,
    }
    return _config_of(raw, "Qwen2ForCausalLM", "qwen2", own)


def _config_of(raw: Json, name: str, model_type: str, own: Json) -> Json:
    """Return a config of these settings and the shared ones."""
    shared = {key: raw[key] for key in _SHARED if key in raw}
    stated = {key: value for key, value in own.items() if value is not None}
    return {**shared, **stated, "architectures": [name], "model_type": model_type}


def _chatglm(raw: Json) -> Json:
    if "position_encoding_2d" in raw:
        raise refuse(
            "the first ChatGLM-6B reads prompts in both directions, which no class here does.",
            "position_encoding_2d",
            "use ChatGLM2, ChatGLM3 or GLM-4.",
        )
    _require(
        raw,
        {
            "rmsnorm": True,
            "post_layer_norm": True,
            "multi_query_attention": True,
            "add_bias_linear": False,
            "apply_residual_connection_post_layernorm": False,
        },
    )
    own = {
        "vocab_size": number(raw, "padded_vocab_size"),
        "hidden_size": number(raw, "hidden_size"),
        "num_hidden_layers": number(raw, "num_layers"),
        "num_attention_heads": number(raw, "num_attention_heads"),
        "num_key_value_heads": number(raw, "multi_query_group_num"),
        "head_dim": raw.get("kv_channels"),
        "intermediate_size": number(raw, "ffn_hidden_size"),
        "rms_norm_eps": raw.get("layernorm_epsilon", 1e-5),
        "attention_bias": bool(raw.get("add_qkv_bias")),
        "rope_theta": 10000.0 * ratio(raw, "rope_ratio"),
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": raw.get("seq_length"),
        "tie_word_embeddings": False,
    }
    return _config_of(raw, "GlmForCausalLM", "glm", own)


def _bailing(raw: Json) -> Json:
    _require(raw, {"score_function": "sigmoid", "use_bias": False, "norm_head": False})
    shared = raw.get("moe_shared_expert_intermediate_size")
    inner = number(raw, "moe_intermediate_size")
    if shared not in (None, inner):
        _require(raw, {"moe_shared_expert_intermediate_size": inner})
    usual = {"partial_rotary_factor": 0.5, "use_qk_norm": True, "n_group": 8, "topk_group": 4}
    return {**usual, **_as("SarvamMoEForCausalLM", "sarvam_moe")(raw)}


def _bailing_first(raw: Json) -> Json:
    _require(raw, {"use_bias": False, "use_qkv_bias": False, "multi_gate": False})
    if raw.get("norm_head"):
        raise refuse(
            "its head is divided by the lengths of its columns when it runs, which is not served.",
            "norm_head",
            "use a GGUF file of the model, whose head is divided already.",
        )
    own = {
        "n_routed_experts": number(raw, "num_experts"),
        "n_shared_experts": raw.get("num_shared_experts") or 0,
        "first_k_dense_replace": raw.get("first_k_dense_replace") or 0,
        "moe_layer_freq": 1,
        "norm_topk_prob": bool(raw.get("norm_topk_prob", True)),
    }
    return _as("DeepseekForCausalLM", "deepseek", **own)(raw)


def _orion(raw: Json) -> Json:
    norm = {"layer_norm_eps": raw.get("rms_norm_eps", 1e-5)}
    usual = {"partial_rotary_factor": 1.0, "use_qkv_bias": bool(raw.get("attention_bias"))}
    return _as("StableLmForCausalLM", "stablelm", **norm, **usual)(raw)


def _stablelm_epoch(raw: Json) -> Json:
    norm = {"layer_norm_eps": raw.get("norm_eps", 1e-5)}
    return _as(
        "StableLmForCausalLM", "stablelm", **norm, partial_rotary_factor=raw.get("rope_pct", 0.25)
    )(raw)


def _refined_web(raw: Json) -> Json:
    own = {
        "num_hidden_layers": number(raw, "n_layer"),
        "num_attention_heads": number(raw, "n_head"),
        "new_decoder_architecture": raw.get("model_type") == "RefinedWeb",
    }
    heads = {"num_kv_heads": raw["n_head_kv"]} if raw.get("n_head_kv") else {}
    return _as("FalconForCausalLM", "falcon", **own, **heads)(raw)


def _biased_llama(raw: Json) -> Json:
    return _as("LlamaForCausalLM", "llama", attention_bias=bool(raw.get("bias", True)))(raw)


_LLAMA = Published(config=_as("LlamaForCausalLM", "llama"))
_QWEN = Published(
    config=_qwen,
    prefixes=(
        ("transformer.wte.", "model.embed_tokens."),
        ("transformer.h.", "model.layers."),
        ("transformer.ln_f.", "model.norm."),
    ),
    renames=(
        (".ln_1.", ".input_layernorm."),
        (".ln_2.", ".post_attention_layernorm."),
        (".attn.c_attn.", ".self_attn.qkv_proj."),
        (".attn.c_proj.", ".self_attn.o_proj."),
        (".mlp.w1.", ".mlp.up_proj."),
        (".mlp.w2.", ".mlp.gate_proj."),
        (".mlp.c_proj.", ".mlp.down_proj."),
    ),
    ignored=(".rotary_emb.", "transformer.visual."),
)
_CHATGLM = Published(
    config=_chatglm,
    prefixes=(
        ("transformer.embedding.word_embeddings.", "model.embed_tokens."),
        ("transformer.encoder.layers.", "model.layers."),
        ("transformer.encoder.final_layernorm.", "model.norm."),
        ("transformer.output_layer.", "lm_head."),
    ),
    renames=(
        (".self_attention.query_key_value.", ".self_attn.qkv_proj."),
        (".self_attention.dense.", ".self_attn.o_proj."),
        (".mlp.dense_h_to_4h.", ".mlp.gate_up_proj."),
        (".mlp.dense_4h_to_h.", ".mlp.down_proj."),
    ),
    ignored=(".rotary_pos_emb.", "transformer.vision."),
)

LAYOUTS: dict[str, Published] = {
    # Qwen/Qwen-7B-Chat, Qwen/Qwen-VL-Chat
    "QWenLMHeadModel": _QWEN,
    # THUDM/chatglm2-6b, chatglm3-6b, zai-org/glm-4-9b-chat, glm-4v-9b
    **dict.fromkeys(
        ("ChatGLMModel", "ChatGLMForConditionalGeneration", "ChatGLMForCausalLM"), _CHATGLM
    ),
    "GLM4VForCausalLM": _CHATGLM,
    # inclusionAI/Ling-mini-2.0, Ling-flash-2.0, Ring-1T
    "BailingMoeV2ForCausalLM": Published(config=_bailing, ignored=(".rotary_emb.",)),
    # inclusionAI/Ling-lite, Ling-plus; their GGUF files are `bailingmoe`
    "BailingMoeForCausalLM": Published(
        config=_bailing_first,
        prefixes=(("model.word_embeddings.", "model.embed_tokens."),),
        renames=(
            (".attention.query_key_value.", ".self_attn.qkv_proj."),
            (".attention.dense.", ".self_attn.o_proj."),
        ),
        ignored=(".rotary_emb.",),
    ),
    # BAAI/AquilaChat2-7B, xverse/XVERSE-7B, early copies of Llama
    **dict.fromkeys(
        ("AquilaModel", "AquilaForCausalLM", "XverseForCausalLM", "LLaMAForCausalLM"), _LLAMA
    ),
    # 01-ai/Yi-6B before its conversion
    "YiForCausalLM": Published(
        config=_as("LlamaForCausalLM", "llama"),
        renames=((".ln1.", ".input_layernorm."), (".ln2.", ".post_attention_layernorm.")),
    ),
    # internlm/internlm-7b, FreedomIntelligence/openPangu-Embedded-7B
    **dict.fromkeys(
        ("InternLMForCausalLM", "PanguEmbeddedForCausalLM"), Published(config=_biased_llama)
    ),
    # OrionStarAI/Orion-14B-Chat
    "OrionForCausalLM": Published(config=_orion),
    # stabilityai/stablelm-3b-4e1t before its conversion
    "StableLMEpochForCausalLM": Published(config=_stablelm_epoch),
    # tiiuae/falcon-7b before its conversion
    "RWForCausalLM": Published(config=_refined_web),
}
"""Published class -> how it is read."""

BY_TYPE = ("KimiK25ForConditionalGeneration", "ExaoneMoEForCausalLM", "Ernie4_5_ForCausalLM")
"""Published classes that transformers has under another name, with the same model type and files.
Code that their checkpoints bring along is not needed."""

_NO_CLASS = "neither dovetail nor transformers has a class with its layers"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("Grok1ForCausalLM", "Grok1ModelForCausalLM"),
        f"{_NO_CLASS} (an MLP beside the experts, four norms, soft caps on attention scores)",
    ),
    "DeepseekOCRForCausalLM": f"{_NO_CLASS} (a text model behind an encoder of pages)",
    "Step3p5ForCausalLM": f"{_NO_CLASS}: transformers has its settings alone",
    "Step3VLForConditionalGeneration": f"{_NO_CLASS} (attention that factorises matrices)",
    "MolmoForCausalLM": f"{_NO_CLASS}",
    "CogVLMForCausalLM": f"{_NO_CLASS} (experts for the tokens of images)",
    "InternLMXComposer2ForCausalLM": f"{_NO_CLASS} (adapters for the tokens of images)",
    "LlavaLlamaModel": "its parts are separate checkpoints in folders; serve the folder llm",
}
"""Published classes that nothing serves, and what is missing: a clause."""
