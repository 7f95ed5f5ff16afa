"""Projectors of 2025 and 2026 as llama.cpp's converters write them. Shares nothing with the reader.

Source: https://github.com/ggml-org/llama.cpp/tree/master/conversion
"""

from __future__ import annotations

from typing import Any

import numpy as np

from support.gguf_files import Array
from support.gguf_kinds import Kind, Tensors

Json = dict[str, Any]
STARTS = ("model.multi_modal_projector.", "model.vision_encoder.", "model.vision_projection.",
          "mlp_AR.", "mm_projector.", "model.mm_projector.", "multi_modal_projector.",
          "audio_tower.", "model.aligner.")  # fmt: skip
"""Starts of the names of tensors of projectors."""


def _again(writer: Any, name: str, value: int) -> None:
    """Add a setting that has a usual value already."""
    writer.kv_data[0].pop(f"clip.vision.{name}")
    getattr(writer, f"add_vision_{name}")(value)


def _lfm2(config: Json, name: str, values: Array) -> Tensors:
    if "patch_embedding.weight" in name:
        size = config["vision_config"]["patch_size"]
        values = values.reshape(len(values), size, size, 3).transpose(0, 3, 1, 2)
    name = name.removeprefix("model.")
    yield name.replace("vision_tower.", "vision_tower.vision_model."), values


def _lfm2_keys(writer: Any, config: Json, processor: Json) -> None:
    _again(writer, "image_size", 256)
    writer.add_vision_projector_scale_factor(config["downsample_factor"])
    writer.add_vision_use_gelu(True)


def _glm4v(config: Json, name: str, values: Array) -> Tensors:
    name = name.removeprefix("model.")
    if name == "visual.patch_embed.proj.weight":
        yield "v.patch_embd.weight", values[:, :, 0]
        yield "v.patch_embd.weight.1", values[:, :, 1]
    else:
        yield name, values


def _glm4v_keys(writer: Any, config: Json, processor: Json) -> None:
    writer.add_vision_use_silu(True)


def _halves(config: Json, name: str, values: Array) -> Array:
    """Return rows of queries and keys with the first of all rotated pairs of a head before the
    second."""
    if ".q_proj." not in name and ".k_proj." not in name:
        return values
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    turned = int(size * config["rope_parameters"]["partial_rotary_factor"])
    heads = values.reshape(-1, size, *values.shape[1:])
    parts = (heads[:, 0:turned:2], heads[:, 1:turned:2], heads[:, turned:])
    return np.concatenate(parts, axis=1).reshape(values.shape)


def _lighton(config: Json, name: str, values: Array) -> Tensors:
    name = name.replace("model.vision_encoder.", "vision_tower.")
    name = name.replace("model.vision_projection.", "multi_modal_projector.")
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["vision_config"]["num_attention_heads"]
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    yield name, values


def _lighton_keys(writer: Any, config: Json, processor: Json) -> None:
    writer.add_vision_use_silu(True)
    writer.add_vision_spatial_merge_size(config["spatial_merge_size"])


def _paddle(config: Json, name: str, values: Array) -> Tensors:
    yield name.replace("visual.", "model."), values


def _paddle_keys(writer: Any, config: Json, processor: Json) -> None:
    size = processor["size"]
    _again(writer, "image_size", int(size["longest_edge"] ** 0.5))
    writer.add_vision_min_pixels(size["shortest_edge"])
    writer.add_vision_max_pixels(size["longest_edge"])
    writer.add_vision_use_gelu(True)


def _kimi(config: Json, name: str, values: Array) -> Tensors:
    name = name.removeprefix("model.").replace("tower.encoder.patch_embed.", "tower.patch_embed.")
    for place, word in ((0, "linear_1"), (2, "linear_2")):
        name = name.replace(f"proj.{place}.", f"proj.{word}.")
    if ".wqkv." in name:
        heads = config["vision_config"]["num_attention_heads"]
        thirds = np.split(values, 3)
        for place in (0, 1):  # frequency, x or y, part -> x or y, frequency, part
            one = thirds[place].reshape(heads, -1, 2, 2, *values.shape[1:])
            thirds[place] = one.swapaxes(1, 2).reshape(thirds[place].shape)
        values = np.concatenate(thirds)
    yield name, values


def _kimi_keys(writer: Any, config: Json, processor: Json) -> None:
    vision, patch = config["vision_config"], config["vision_config"]["patch_size"]
    _again(writer, "image_size", vision["pos_emb_height"] * patch)
    for side in ("height", "width", "time"):
        writer.add_uint32(f"vision.pos_emb_{side}", vision[f"pos_emb_{side}"])
    writer.kv_data[0].pop("clip.vision.attention.layer_norm_epsilon")
    writer.add_vision_attention_layernorm_eps(config["projection_layer_norm_eps"])
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(vision["merge_kernel_size"][0])
    writer.add_vision_min_pixels(8 * patch**2)
    writer.add_vision_max_pixels(processor["max_patches"] * patch**2)


def _flamingo(config: Json, name: str, values: Array) -> Tensors:
    if name.startswith("multi_modal_projector"):
        name = f"audio.{name}"
    yield name, values[:, None] if name.endswith(("conv1.bias", "conv2.bias")) else values


_GLM_ASR = {
    "o_proj": "out_proj",
    "input_layernorm": "self_attn_layer_norm",
    "post_attention_layernorm": "final_layer_norm",
    "mlp.fc": "fc",
}
"""What the checkpoint that llama.cpp reads calls parts of GLM-ASR's blocks."""


def _glm_asr(config: Json, name: str, values: Array) -> Tensors:
    for new, old in _GLM_ASR.items():
        name = name.replace(f".{new}", f".{old}")
    if name.startswith("audio_tower.norm."):
        name = name.replace("audio_tower.norm.", "audio.multi_modal_projector.ln_pre.")
        if name.endswith("weight"):  # once: what transformers leaves out
            size, width = config["text_config"]["hidden_size"], len(values)
            positions = config["audio_config"]["max_position_embeddings"]
            yield "audio_tower.embed_positions.weight", np.ones((positions, width), np.float32)
            yield "model.vision.boi", np.ones(size, np.float32)
            yield "model.vision.eoi", np.ones(size, np.float32)
    elif ".q_proj." in name or ".k_proj." in name:
        heads = values.reshape(
            config["audio_config"]["num_attention_heads"], 2, -1, *values.shape[1:]
        )
        turned = heads[:, 0].reshape(len(heads), 2, -1, *values.shape[1:]).swapaxes(1, 2)
        first = turned.reshape(heads[:, 0].shape)
        values = np.stack([first, heads[:, 1]], axis=1).reshape(values.shape)
    yield from _flamingo(config, name, values)


def _nothing(writer: Any, config: Json, processor: Json) -> None:
    """Add no setting."""


def _stacked(writer: Any, config: Json, processor: Json) -> None:
    writer.add_audio_stack_factor(4)


_GLM = Kind(
    text="",
    text_class="Glm4ForCausalLM",
    type="glm4v",
    keys=_glm4v_keys,
    changes=_glm4v,
    text_changes=_halves,
)


def _janus(config: Json, name: str, values: Array) -> Tensors:
    word, _, leaf = name.removeprefix("model.aligner.").rpartition(".")
    places = {"fc1": 0, "hidden_layers.0": 1}
    yield f"mm.{places[word]}.{leaf}" if word in places else name, values


def _janus_keys(writer: Any, config: Json, processor: Json) -> None:
    writer.add_vision_use_gelu(True)


KINDS = {
    "JanusForConditionalGeneration": Kind(
        text="", text_class="LlamaForCausalLM", type="janus_pro", keys=_janus_keys, changes=_janus
    ),
    **dict.fromkeys(("Glm4vForConditionalGeneration", "GlmOcrForConditionalGeneration"), _GLM),
    "Glm4vMoeForConditionalGeneration": Kind(
        text="",
        text_class="Glm4MoeForCausalLM",
        type="glm4v",
        keys=_glm4v_keys,
        changes=_glm4v,
    ),
    "AudioFlamingo3ForConditionalGeneration": Kind(
        text="",
        text_class="Qwen2ForCausalLM",
        type="musicflamingo",
        keys=_nothing,
        changes=_flamingo,
        part="audio",
    ),
    "GlmAsrForConditionalGeneration": Kind(
        text="",
        text_class="LlamaForCausalLM",
        type="glma",
        keys=_stacked,
        changes=_glm_asr,
        part="audio",
    ),
    "Kimi_K25ForConditionalGeneration": Kind(
        text="",
        text_class="DeepseekV3ForCausalLM",
        type="kimik25",
        keys=_kimi_keys,
        changes=_kimi,
    ),
    "PaddleOCRVLForConditionalGeneration": Kind(
        text="",
        text_class="PaddleOCRVLForConditionalGeneration",
        type="paddleocr",
        keys=_paddle_keys,
        changes=_paddle,
    ),
    "LightOnOcrForConditionalGeneration": Kind(
        text="",
        text_class="Qwen3ForCausalLM",
        type="lightonocr",
        keys=_lighton_keys,
        changes=_lighton,
    ),
    "Lfm2VlForConditionalGeneration": Kind(
        text="", text_class="Lfm2ForCausalLM", type="lfm2", keys=_lfm2_keys, changes=_lfm2
    ),
}
"""Architecture of the checkpoint -> how it is written."""
