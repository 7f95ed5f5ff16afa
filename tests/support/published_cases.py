"""Tiny checkpoints under the class names of model cards: one of a class that is served, rewritten
with the settings and the names of tensors that the published model has.

Sources: config.json and the tensor names of the checkpoints that `published.wholes` and
`published.layouts` name.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Settings = Callable[[Json], Json]
Tensors = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCase:
    """A published class. `model_type` is the type of transformers whose tiny checkpoint it is made
    of, with `overrides` for its config. `settings` rewrites config.json, `names` are (pattern,
    replacement) pairs applied to each tensor's name in this order, `joined` makes one tensor of
    several by the ends of names, and `others` are tensors of parts that are not read."""

    model_type: str
    settings: Settings
    overrides: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[tuple[str, str], ...] = ()
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: tuple[str, ...] = ()


def write_published(base: Path, folder: Path, name: str, case: PublishedCase) -> Path:
    """Rewrite the tiny checkpoint in `base` as a published class has it; return the folder."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(base, folder)
    file = folder / "config.json"
    config = {**case.settings(json.loads(file.read_text())), "architectures": [name]}
    file.write_text(json.dumps(config))
    tensors = _joined(load_file(base / "model.safetensors"), case.joined)
    renamed = {_renamed(name, case.names): tensor for name, tensor in tensors.items()}
    renamed |= {name: torch.ones(2, 3) for name in case.others}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _renamed(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for pattern, new in pairs:
        name = re.sub(pattern, new, name)
    return name


def _joined(tensors: Tensors, joins: Mapping[str, tuple[str, ...]]) -> Tensors:
    """Return tensors of which some are concatenated along their first dimension."""
    import torch

    found = dict(tensors)
    for new, ends in joins.items():
        for name in [name for name in tensors if ends[0] in name]:
            parts = [found.pop(name.replace(ends[0], end)) for end in ends]
            found[name.replace(ends[0], new)] = torch.cat(parts)
    return found


def _behind(key: str, model_type: str, **more: Any) -> Settings:
    """Return what puts a config under a key of a model that takes images."""
    vision = {"vision_config": {"hidden_size": 8, "model_type": "siglip"}}
    return lambda own: {key: own, "model_type": model_type, **vision, **more}


def _beside(model_type: str, **more: Any) -> Settings:
    """Return what adds settings of images to those of the text model, under another type."""
    vision = {"vision_config": {"hidden_size": 8}}
    return lambda own: {**own, **vision, "model_type": model_type, **more}


_UNDER_LANGUAGE = ((r"^", "language_model."),)
_INTERNVL_PARTS = ("vision_model.encoder.layers.0.attn.qkv.weight", "mlp1.0.weight", "mlp1.1.bias")
_LLAVA_PARTS = (
    "model.mm_projector.0.weight",
    "model.image_newline",
    "model.vision_tower.vision_tower.vision_model.embeddings.patch_embedding.weight",
)
_MINICPM_PARTS = (
    *("vpm.embeddings.patch_embedding.weight", "resampler.query", "resampler.attn.in_proj_weight"),
    *("apm.conv1.weight", "audio_projection_layer.linear1.weight", "tts.emb_text.weight"),
)
_UNTIED = {"tie_word_embeddings": False}


def _internvl(model_type: str) -> PublishedCase:
    return PublishedCase(
        model_type=model_type,
        settings=_behind("llm_config", "internvl_chat", downsample_ratio=0.5),
        names=_UNDER_LANGUAGE,
        others=_INTERNVL_PARTS,
    )


def _minicpm_v(model_type: str, version: Any) -> PublishedCase:
    return PublishedCase(
        model_type=model_type,
        settings=_beside("minicpmv", version=version, query_num=64),
        overrides=_UNTIED,
        names=((r"^", "llm."),),
        others=_MINICPM_PARTS,
    )


def _llava(model_type: str, published_type: str) -> PublishedCase:
    return PublishedCase(
        model_type=model_type,
        settings=_beside(published_type, mm_vision_tower="openai/clip-vit-large-patch14-336"),
        others=_LLAVA_PARTS,
    )


def _qwen(own: Json) -> Json:
    return {
        "model_type": "qwen",
        "vocab_size": own["vocab_size"],
        "hidden_size": own["hidden_size"],
        "num_hidden_layers": own["num_hidden_layers"],
        "num_attention_heads": own["num_attention_heads"],
        "kv_channels": own["hidden_size"] // own["num_attention_heads"],
        "intermediate_size": 2 * own["intermediate_size"],
        "layer_norm_epsilon": own["rms_norm_eps"],
        "rotary_emb_base": own["rope_parameters"]["rope_theta"],
        "rotary_pct": 1.0,
        "seq_length": own["max_position_embeddings"],
        "max_position_embeddings": 8 * own["max_position_embeddings"],
        "no_bias": True,
        "tie_word_embeddings": False,
        "use_dynamic_ntk": True,
        "use_logn_attn": True,
        "auto_map": {"AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel"},
    }


def _chatglm(own: Json) -> Json:
    return {
        "model_type": "chatglm",
        "padded_vocab_size": own["vocab_size"],
        "hidden_size": own["hidden_size"],
        "num_layers": own["num_hidden_layers"],
        "num_attention_heads": own["num_attention_heads"],
        "multi_query_attention": True,
        "multi_query_group_num": own["num_key_value_heads"],
        "kv_channels": own["head_dim"],
        "ffn_hidden_size": own["intermediate_size"],
        "layernorm_epsilon": own["rms_norm_eps"],
        "seq_length": own["max_position_embeddings"],
        "rope_ratio": own["rope_parameters"]["rope_theta"] / 10000,
        "add_qkv_bias": own["attention_bias"],
        "add_bias_linear": False,
        "post_layer_norm": True,
        "rmsnorm": True,
        "apply_residual_connection_post_layernorm": False,
        "tie_word_embeddings": False,
        "eos_token_id": own["eos_token_id"],
        "auto_map": {"AutoModelForCausalLM": "modeling_chatglm.ChatGLMForConditionalGeneration"},
    }


def _bailing(own: Json) -> Json:
    dropped = ("rope_parameters", "architectures", "num_mtp_layers", "num_local_experts")
    own = {key: value for key, value in own.items() if key not in dropped}
    return {
        **own,
        "model_type": "bailing_moe",
        "score_function": "sigmoid",
        "use_bias": False,
        "norm_head": False,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "auto_map": {"AutoModelForCausalLM": "modeling_bailing_moe_v2.BailingMoeV2ForCausalLM"},
    }


_FALCON_KEYS = ("num_hidden_layers", "num_attention_heads", "new_decoder_architecture")
_QKV = {"qkv_proj.": ("q_proj.", "k_proj.", "v_proj.")}
_CHATGLM = PublishedCase(
    model_type="glm",
    settings=_chatglm,
    overrides={
        **_UNTIED,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5000000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    names=(
        (r"^model\.embed_tokens", "transformer.embedding.word_embeddings"),
        (r"^model\.layers", "transformer.encoder.layers"),
        (r"^model\.norm", "transformer.encoder.final_layernorm"),
        (r"^lm_head", "transformer.output_layer"),
        (r"self_attn\.qkv_proj", "self_attention.query_key_value"),
        (r"self_attn\.o_proj", "self_attention.dense"),
        (r"gate_up_proj", "dense_h_to_4h"),
        (r"down_proj", "dense_4h_to_h"),
    ),
    joined=_QKV,
    others=("transformer.rotary_pos_emb.inv_freq",),
)

CASES: dict[str, tuple[str, PublishedCase]] = {
    "internvl_qwen2": ("InternVLChatModel", _internvl("qwen2")),
    "internvl_qwen3": ("InternVLChatModel", _internvl("qwen3")),
    "internvl_llama": ("InternVLChatModel", _internvl("llama")),
    "internvl_gpt_oss": ("InternVLChatModel", _internvl("gpt_oss")),
    "internvl_backed": ("InternVLChatModel", _internvl("exaone_moe")),
    "minicpm_v_2.6": ("MiniCPMV", _minicpm_v("qwen2", 2.6)),
    "minicpm_v_4.5": ("MiniCPMV", _minicpm_v("qwen3", 4.5)),
    "minicpm_v_4": ("MiniCPMV", _minicpm_v("llama", 4.0)),
    "minicpm_o": ("MiniCPMO", _minicpm_v("qwen2", "2.6")),
    "phi4mm": (
        "Phi4MMForCausalLM",
        PublishedCase(
            model_type="phi3",
            settings=_beside("phi4mm", vision_lora={"r": 256}, speech_lora={"r": 320}),
            names=((r"_proj\.weight", "_proj.base_layer.weight"),),
            others=(
                "model.embed_tokens_extend.image_embed.img_projection.0.weight",
                "model.layers.0.self_attn.qkv_proj.lora_A.vision.weight",
                "model.layers.0.self_attn.qkv_proj.lora_B.speech.weight",
            ),
        ),
    ),
    "phi3_v": (
        "Phi3VForCausalLM",
        PublishedCase(
            model_type="phi3",
            settings=_beside("phi3_v", img_processor={"name": "clip_vision_model"}),
            others=("model.vision_embed_tokens.img_projection.0.weight",),
        ),
    ),
    "llava_llama": ("LlavaLlamaForCausalLM", _llava("llama", "llava")),
    "llava_mistral": ("LlavaMistralForCausalLM", _llava("mistral", "llava_mistral")),
    "llava_qwen": ("LlavaQwenForCausalLM", _llava("qwen2", "llava")),
    "keye": (
        "KeyeForConditionalGeneration",
        PublishedCase(
            model_type="qwen3",
            settings=_beside("Keye", rope_scaling={"type": "mrope", "mrope_section": [2, 1, 1]}),
            others=("visual.vision_model.head.probe", "mlp_AR.linear_1.weight"),
        ),
    ),
    "dots_ocr": (
        "DotsOCRForCausalLM",
        PublishedCase(
            model_type="qwen2",
            settings=_beside("dots_ocr"),
            others=("vision_tower.blocks.0.attn.qkv.weight",),
        ),
    ),
    "ovis2_5": (
        "Ovis2_5",
        PublishedCase(
            model_type="qwen3",
            settings=_behind("llm_config", "ovis2_5", vit_config={"hidden_size": 8}),
            names=((r"^", "llm."),),
            others=("visual_tokenizer.vit.head.weight", "vte.weight"),
        ),
    ),
    "nemotron_nano_vl": (
        "NemotronH_Nano_VL_V2",
        PublishedCase(
            model_type="nemotron_h",
            settings=_behind("llm_config", "NemotronH_Nano_VL_V2"),
            names=_UNDER_LANGUAGE,
            others=("vision_model.radio_model.input_conditioner.norm_mean", "mlp1.0.weight"),
        ),
    ),
    "deepseek_vl2": (
        "DeepseekVLV2ForCausalLM",
        PublishedCase(
            model_type="deepseek_v2",
            settings=_behind("language_config", "deepseek_vl_v2"),
            names=((r"^", "language."),),
            others=("vision.patch_embed.proj.weight", "projector.layers.0.weight", "image_newline"),
        ),
    ),
    "kimi_vl": (
        "KimiVLForConditionalGeneration",
        PublishedCase(
            model_type="deepseek_v3",
            settings=_behind("text_config", "kimi_vl"),
            names=_UNDER_LANGUAGE,
            others=(
                "vision_tower.patch_embed.proj.weight",
                "multi_modal_projector.linear_1.weight",
            ),
        ),
    ),
    "janus": (
        "MultiModalityCausalLM",
        PublishedCase(
            model_type="llama",
            settings=_behind("language_config", "multi_modality"),
            names=_UNDER_LANGUAGE,
            others=("vision_model.vision_tower.norm.weight", "aligner.layers.0.weight", "gen_x.y"),
        ),
    ),
    "qwen": (
        "QWenLMHeadModel",
        PublishedCase(
            model_type="qwen2",
            settings=_qwen,
            overrides={**_UNTIED, "num_key_value_heads": 4},
            names=(
                (r"^model\.embed_tokens", "transformer.wte"),
                (r"^model\.layers", "transformer.h"),
                (r"^model\.norm", "transformer.ln_f"),
                (r"input_layernorm", "ln_1"),
                (r"post_attention_layernorm", "ln_2"),
                (r"self_attn\.qkv_proj", "attn.c_attn"),
                (r"self_attn\.o_proj", "attn.c_proj"),
                (r"mlp\.up_proj", "mlp.w1"),
                (r"mlp\.gate_proj", "mlp.w2"),
                (r"mlp\.down_proj", "mlp.c_proj"),
            ),
            joined=_QKV,
            others=("transformer.rotary_emb.inv_freq",),
        ),
    ),
    "chatglm": ("ChatGLMModel", _CHATGLM),
    "glm4_chat": ("ChatGLMForConditionalGeneration", _CHATGLM),
    "ling": (
        "BailingMoeV2ForCausalLM",
        PublishedCase(
            model_type="sarvam_moe",
            settings=_bailing,
            overrides={
                "n_group": 2,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 0.5,
                },
            },
        ),
    ),
    "aquila": (
        "AquilaForCausalLM",
        PublishedCase(model_type="llama", settings=lambda own: {**own, "model_type": "aquila"}),
    ),
    "internlm": (
        "InternLMForCausalLM",
        PublishedCase(
            model_type="llama",
            settings=lambda own: {
                **{k: v for k, v in own.items() if k != "attention_bias"},
                "model_type": "internlm",
                "bias": True,
            },
            overrides={"attention_bias": True},
        ),
    ),
    "yi": (
        "YiForCausalLM",
        PublishedCase(
            model_type="llama",
            settings=lambda own: {**own, "model_type": "Yi"},
            names=((r"input_layernorm", "ln1"), (r"post_attention_layernorm", "ln2")),
        ),
    ),
    "stablelm_epoch": (
        "StableLMEpochForCausalLM",
        PublishedCase(
            model_type="stablelm",
            settings=lambda own: {
                **{k: v for k, v in own.items() if k not in ("layer_norm_eps", "rope_parameters")},
                "model_type": "stablelm_epoch",
                "norm_eps": own["layer_norm_eps"],
                "rope_pct": 0.25,
                "rope_theta": own["rope_parameters"]["rope_theta"],
            },
        ),
    ),
    "kimi_k25": (
        "KimiK25ForConditionalGeneration",
        PublishedCase(
            model_type="kimi_k25",
            settings=lambda own: {
                **own,
                "auto_map": {"AutoModelForCausalLM": "modeling_kimi_k25.KimiK25"},
            },
        ),
    ),
    "exaone_moe": (
        "ExaoneMoEForCausalLM",
        PublishedCase(model_type="exaone_moe", settings=lambda own: own),
    ),
    "orion": (
        "OrionForCausalLM",
        PublishedCase(
            model_type="stablelm",
            settings=lambda own: {
                **{k: v for k, v in own.items() if k not in ("layer_norm_eps", "rope_parameters")},
                "model_type": "orion",
                "rms_norm_eps": own["layer_norm_eps"],
                "rope_theta": own["rope_parameters"]["rope_theta"],
            },
            overrides={
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 1.0,
                }
            },
        ),
    ),
    "refined_web": (
        "RWForCausalLM",
        PublishedCase(
            model_type="falcon",
            settings=lambda own: {
                **{k: v for k, v in own.items() if k not in _FALCON_KEYS},
                "model_type": "RefinedWebModel",
                "n_layer": own["num_hidden_layers"],
                "n_head": own["num_attention_heads"],
            },
        ),
    ),
    "pangu": (
        "PanguEmbeddedForCausalLM",
        PublishedCase(
            model_type="llama",
            settings=lambda own: {
                **{k: v for k, v in own.items() if k != "attention_bias"},
                "model_type": "PanguEmbedded",
                "bias": True,
            },
            overrides={"attention_bias": True},
        ),
    ),
    "hcx_vision": (
        "HCXVisionForCausalLM",
        PublishedCase(
            model_type="llama",
            settings=_behind("text_config", "hyperclovax_vlm"),
            names=_UNDER_LANGUAGE,
            others=("vision_model.embeddings.x", "mm_projector.0.weight", "image_newline"),
        ),
    ),
    "minimax_vl": (
        "MiniMaxVL01ForConditionalGeneration",
        PublishedCase(
            model_type="minimax",
            settings=_behind("text_config", "minimax_vl_01"),
            names=_UNDER_LANGUAGE,
            others=("vision_tower.x.weight", "multi_modal_projector.linear_1.weight"),
        ),
    ),
    "ernie": (
        "Ernie4_5_ForCausalLM",
        PublishedCase(model_type="ernie4_5", settings=lambda own: own),
    ),
    "unknown": ("MyForCausalLM", PublishedCase(model_type="llama", settings=lambda own: own)),
}
"""What a sweep calls the case -> the published class, and how its checkpoint is made."""
SAME_AS = {
    "AquilaModel": "aquila",
    "XverseForCausalLM": "aquila",
    "LLaMAForCausalLM": "aquila",
    "ChatGLMForCausalLM": "chatglm",
    "GLM4VForCausalLM": "chatglm",
    "H2OVLChatModel": "internvl_llama",
    "SkyworkR1VChatModel": "internvl_qwen2",
    "NVLM_D": "internvl_qwen2",
    "NVLM_D_Model": "internvl_qwen2",
    "Llama_Nemotron_Nano_VL": "internvl_llama",
    "NemotronH_Nano_Omni_Reasoning_V3": "nemotron_nano_vl",
    "KeyeVL1_5ForConditionalGeneration": "keye",
    "LlavaQwen2ForCausalLM": "llava_qwen",
    "Ovis": "ovis2_5",
}
"""Other classes with the layout of a case."""
CASES |= {name: (name, CASES[case][1]) for name, case in SAME_AS.items()}
