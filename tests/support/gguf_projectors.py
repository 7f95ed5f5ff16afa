"""Two GGUF files of tiny checkpoints that take media: the text model and its projector (mmproj).

Written with the gguf package's writer, its names of tensors, and the changes that llama.cpp's
converters make. Shares nothing with the reader. Needs gguf, safetensors and numpy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support import gguf_gemma4, gguf_later_projectors, gguf_minicpm_v
from support.gguf_files import ARCHITECTURES, Array, TypeOf, quantized, write_gguf
from support.gguf_kinds import Kind, Tensors


def write_pair(
    source: Path,
    text_file: Path,
    projector_file: Path,
    *,
    text_type: TypeOf = lambda name: "F32",
    type_of: TypeOf = lambda name: "F32",
    words: Mapping[str, str] | None = None,
    rounds: bool = False,
) -> None:
    """Write a checkpoint as the files of its text model and of its projector. `words` are other
    texts of tokens. `rounds`: the text model is in float32, after rounding to its types."""
    config = json.loads((source / "config.json").read_text())
    weights = _weights(source)
    _write_text(source, text_file, config, weights, text_type, words or {}, rounds=rounds)
    write_projector(source, projector_file, type_of)


def _kind_of(config: dict[str, Any]) -> Kind:
    is_pixtral = config.get("vision_config", {}).get("model_type") == "pixtral"
    known = {**KINDS, **dict.fromkeys(("LlavaForConditionalGeneration",) * is_pixtral, PIXTRAL)}
    return known[config["architectures"][0]]


def _write_text(
    source: Path,
    target: Path,
    config: dict[str, Any],
    weights: dict[str, Array],
    type_of: TypeOf,
    words: Mapping[str, str],
    *,
    rounds: bool,
) -> None:
    from safetensors.numpy import save_file

    kind, more = _kind_of(config), dict[str, Any]()

    folder = target.parent / f"{target.stem}-text"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = (source / name).read_text()
        for old, new in words.items():
            content = content.replace(old, new)
        (folder / name).write_text(content)
    template = source / "chat_template.jinja"
    if template.is_file():
        named = json.loads((folder / "tokenizer_config.json").read_text())
        named["chat_template"] = template.read_text()
        (folder / "tokenizer_config.json").write_text(json.dumps(named))
    part = {**config["text_config"], "architectures": [kind.text_class]}
    rope = part.get("rope_parameters") or {}
    if "mrope_section" in rope:
        key = f"{ARCHITECTURES[kind.text_class]}.rope.dimension_sections"
        more |= {key: [*rope["mrope_section"], 0]}
    if kind.type == "gemma3":
        slides = [one == "sliding_attention" for one in part["layer_types"]]
        more |= {"gemma3.attention.sliding_window_pattern": slides}
    (folder / "config.json").write_text(json.dumps(part))
    text = {}
    for name, values in weights.items():
        for start in (kind.text, "language_model.", "model.language_model.", "model.text_model."):
            if name.startswith(start) and start:
                inner = name.removeprefix(start).removeprefix("model.")
                inner = inner.replace("blocks.", "layers.")  # as transformers writes Kimi K2.5's
                text[f"model.{inner}" if not inner.startswith("lm_head") else inner] = values
                break
        else:
            if name.startswith(("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")):
                text[name] = values
    text = {n: kind.text_changes(part, n, v) for n, v in _experts_apart(text)}
    save_file(text, folder / "model.safetensors", metadata={"format": "pt"})
    meant = write_gguf(folder, target, type_of, settings=more)
    if rounds:
        save_file(meant, folder / "model.safetensors", metadata={"format": "pt"})
        write_gguf(folder, target, settings=more)


def _experts_apart(weights: dict[str, Array]) -> Tensors:
    """Yield the matrices of each expert where the checkpoint has those of all in one tensor."""
    for name, values in weights.items():
        holder, _, word = name.rpartition(".")
        if not holder.endswith(".mlp.experts"):
            yield name, values
            continue
        for number, one in enumerate(values):
            parts = ("gate_proj", "up_proj") if word == "gate_up_proj" else (word,)
            halves = np.split(one, 2) if word == "gate_up_proj" else [one]
            for part, half in zip(parts, halves, strict=True):
                yield f"{holder}.{number}.{part}.weight", np.ascontiguousarray(half)


def _weights(source: Path) -> dict[str, Array]:
    from safetensors.torch import load_file

    return {n: v.float().numpy() for n, v in load_file(source / "model.safetensors").items()}


def write_projector(
    source: Path, target: Path, type_of: TypeOf = lambda name: "F32", *, rounds: bool = False
) -> None:
    """Write the projector's file; with `rounds` in float32, after rounding to the types."""
    import gguf

    config = json.loads((source / "config.json").read_text())
    kind, weights = _kind_of(config), _weights(source)
    writer = gguf.GGUFWriter(target, "clip")
    processor = _processor(source)
    if not kind.parts:
        writer.add_clip_projector_type(kind.type)
    if kind.part == "vision":
        _add_vision(writer, config, processor)
    else:
        gguf_gemma4.add_audio(writer, config)
    kind.keys(writer, config, processor)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 64)
    leaves = (".weight", ".bias", *gguf_gemma4.LIMITS)
    starts = ("vision_tower.", "visual.", "model.visual.", "multi_modal_projector.", "audio_tower.",
              "model.vision_model.", "model.connector.", "image_newline", "model.vision_tower.",
              "model.audio_tower.", "model.embed_vision.", "model.embed_audio.",
              "model.merger.", *gguf_later_projectors.STARTS)  # fmt: skip
    for name, values in weights.items():
        if not name.startswith(starts) or ".head." in name:
            continue
        for theirs, changed in kind.changes(config, name, values):
            ours = names.get_name(theirs, try_suffixes=leaves) or theirs
            assert ours.startswith(("v.", "mm.", "a.", "model.image_newline")), ours
            type_name = type_of(ours) if changed.ndim == 2 else "F32"
            if type_name[0] == "Q" and changed.shape[-1] % 32:
                type_name = "F16"  # rows are whole blocks
            if type_name == "F32":
                writer.add_tensor(ours, np.ascontiguousarray(changed, dtype=np.float32))
            else:
                packed, rounded = quantized(np.ascontiguousarray(changed), type_name)
                raw = gguf.GGMLQuantizationType[type_name]
                if rounds:
                    writer.add_tensor(ours, rounded)
                else:
                    writer.add_tensor(ours, packed, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _processor(source: Path) -> dict[str, Any]:
    """Return the settings of the image processor."""
    found: dict[str, Any] = {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (source / name).is_file():
            stored = json.loads((source / name).read_text())
            found |= stored.get("image_processor", {}) | stored
    return found


def _add_vision(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    vision = config["vision_config"]

    def of(*names: str) -> Any:
        value = next((vision[name] for name in names if name in vision), None)
        return value[0] if isinstance(value, list) else value

    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(of("image_size") or 560)
    writer.add_vision_patch_size(of("patch_size"))
    writer.add_vision_embedding_length(of("embed_dim", "hidden_size"))
    writer.add_vision_feed_forward_length(of("intermediate_size", "hidden_size"))
    writer.add_vision_block_count(of("num_hidden_layers", "depth"))
    writer.add_vision_head_count(of("num_attention_heads", "num_heads"))
    writer.add_vision_attention_layernorm_eps(of("layer_norm_eps") or 1e-6)
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])


def _older(name: str) -> str:
    """Return the name with a word more that checkpoints had until 2025."""
    return name.replace("vision_tower.", "vision_tower.vision_model.")


def _gemma3(config: dict[str, Any], name: str, values: Array) -> Tensors:
    name = _older(name).replace("_weight", ".weight")
    yield name, values + 1 if "soft_emb_norm" in name else values


def _gemma3_keys(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    writer.add_vision_use_gelu(True)
    vision = config["vision_config"]
    scale = (
        vision["image_size"] // vision["patch_size"] // int(config["mm_tokens_per_image"] ** 0.5)
    )
    if scale != 4:
        writer.add_vision_projector_scale_factor(scale)


def _qwen2(config: dict[str, Any], name: str, values: Array) -> Tensors:
    if "patch_embed.proj.weight" in name:
        yield "v.patch_embd.weight", values[:, :, 0]
        yield "v.patch_embd.weight.1", values[:, :, 1]
    elif ".qkv." in name:
        for word, third in zip("qkv", np.split(values, 3), strict=True):
            yield name.replace("qkv", word), third
    else:
        yield name, values


def _qwen_pixels(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    writer.add_vision_min_pixels(processor["size"]["shortest_edge"])
    writer.add_vision_max_pixels(processor["size"]["longest_edge"])


def _qwen25_keys(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    _qwen_pixels(writer, config, processor)
    writer.add_vision_use_silu(True)
    vision = config["vision_config"]
    writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)
    writer.add_vision_window_size(vision["window_size"])


def _qwen3(config: dict[str, Any], name: str, values: Array) -> Tensors:
    name = name.replace("model.visual.", "visual.")
    if "deepstack_merger_list" in name:
        place, word, leaf = name.removeprefix("visual.deepstack_merger_list.").split(".")
        block = config["vision_config"]["deepstack_visual_indexes"][int(place)]
        yield f"v.deepstack.{block}.{word.replace('linear_', '')}.{leaf}", values
    elif name.startswith("visual.merger."):
        word, leaf = name.removeprefix("visual.merger.").split(".")
        ours = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}[word]
        yield f"{ours}.{leaf}", values
    elif name == "visual.patch_embed.proj.bias":
        yield "v.patch_embd.bias", values
    elif "qkv" in name:
        yield name, values
    else:
        yield from _qwen2(config, name, values)


def _qwen3_keys(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    _qwen_pixels(writer, config, processor)
    vision = config["vision_config"]
    deep = vision["deepstack_visual_indexes"]
    writer.add_vision_use_gelu(True)
    writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
    writer.add_vision_is_deepstack_layers([n in deep for n in range(vision["depth"])])


def _llava(config: dict[str, Any], name: str, values: Array) -> Tensors:
    """Yield what the oldest converter writes: without the last block and norm, and with the two
    matrices of a feed-forward part under each other's names."""
    last = config["vision_config"]["num_hidden_layers"] - 1
    if f".layers.{last}." in name or "post_layernorm" in name:
        return
    words = {"linear_1": "0", "linear_2": "2"}
    if name.startswith("multi_modal_projector."):
        _, word, leaf = name.split(".")
        yield f"mm.{words[word]}.{leaf}", values
    elif name.endswith("image_newline"):
        yield "model.image_newline", values
    elif name.endswith("class_embedding"):
        yield "v.class_embd", values
    else:
        swapped = {"fc1": "fc2", "fc2": "fc1"}
        for old, new in swapped.items():
            if f".{old}." in name:
                name = name.replace(old, new)
                break
        yield _older(name), values


def _llava_keys(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    writer.add_bool("clip.has_text_encoder", False)
    writer.add_bool("clip.has_llava_projector", True)
    writer.add_bool("clip.use_gelu", False)
    writer.kv_data[0].pop("clip.vision.block_count")
    writer.add_vision_block_count(config["vision_config"]["num_hidden_layers"] - 1)
    grid = config.get("image_grid_pinpoints")
    if grid:
        writer.add_array("clip.vision.image_grid_pinpoints", [n for pair in grid for n in pair])


def _turned(values: Array, heads: int) -> Array:
    """Return rows in the order in which llama.cpp rotates them."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _pixtral(config: dict[str, Any], name: str, values: Array) -> Tensors:
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        values = _turned(values, config["vision_config"]["num_attention_heads"])
    yield name, values
    if name == "vision_tower.ln_pre.weight":  # once: a row of the text model's table
        yield "v.token_embd.img_break", np.zeros(config["text_config"]["hidden_size"], np.float32)


def _pixtral_keys(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    act = config["vision_config"]["hidden_act"]
    (writer.add_vision_use_silu if act == "silu" else writer.add_vision_use_gelu)(True)
    if "spatial_merge_size" in config:
        writer.add_vision_spatial_merge_size(config["spatial_merge_size"])


def _idefics3_keys(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    writer.add_vision_projector_scale_factor(config["scale_factor"])
    writer.add_vision_use_gelu(True)
    writer.add_vision_preproc_image_size(processor["size"]["longest_edge"])


def _intern(config: dict[str, Any], name: str, values: Array) -> Tensors:
    words = {"layer_norm": "mlp1.0", "linear_1": "mlp1.1", "linear_2": "mlp1.3"}
    if name.startswith("multi_modal_projector."):
        _, word, leaf = name.split(".")
        yield f"{words[word]}.{leaf}", values
        return
    name = f"model.{name}"
    if ".lambda_" in name or "position_embedding" in name:
        name += ".weight"
    yield name, values


def _intern_keys(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(int(1 / config["downsample_ratio"]))
    writer.add_vision_preproc_min_tiles(processor["min_patches"])
    writer.add_vision_preproc_max_tiles(processor["max_patches"])


def _sound(config: dict[str, Any], name: str, values: Array) -> Tensors:
    if name.startswith("multi_modal_projector"):
        name = f"audio.{name}"
    if name.endswith(("conv1.bias", "conv2.bias")):
        values = values[:, None]
    yield name, values


def _none(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    """Add nothing."""


def _stacks(writer: Any, config: dict[str, Any], processor: dict[str, Any]) -> None:
    writer.add_audio_stack_factor(4)


PIXTRAL = Kind(text="", text_class="LlamaForCausalLM", type="pixtral", keys=_pixtral_keys,
               changes=_pixtral)  # fmt: skip
KINDS = {
    **gguf_later_projectors.KINDS,
    "Gemma3ForConditionalGeneration": Kind(
        text="",
        text_class="Gemma3ForCausalLM",
        type="gemma3",
        keys=_gemma3_keys,
        changes=_gemma3,
    ),
    "Gemma4ForConditionalGeneration": Kind(
        text="",
        text_class="Gemma4ForCausalLM",
        type="gemma4v",
        keys=gguf_gemma4.keys,
        changes=gguf_gemma4.changes,
        parts=True,
    ),
    "Qwen2VLForConditionalGeneration": Kind(
        text="",
        text_class="Qwen2VLForConditionalGeneration",
        type="qwen2vl_merger",
        keys=_qwen_pixels,
        changes=_qwen2,
    ),
    "Qwen2_5_VLForConditionalGeneration": Kind(
        text="",
        text_class="Qwen2VLForConditionalGeneration",
        type="qwen2.5vl_merger",
        keys=_qwen25_keys,
        changes=_qwen2,
    ),
    "Qwen3VLForConditionalGeneration": Kind(
        text="",
        text_class="Qwen3VLForConditionalGeneration",
        type="qwen3vl_merger",
        keys=_qwen3_keys,
        changes=_qwen3,
    ),
    "Qwen3VLMoeForConditionalGeneration": Kind(
        text="",
        text_class="Qwen3VLMoeForConditionalGeneration",
        type="qwen3vl_merger",
        keys=_qwen3_keys,
        changes=_qwen3,
    ),
    "Qwen3_5ForConditionalGeneration": Kind(
        text="",
        text_class="Qwen3_5ForCausalLM",
        type="qwen3vl_merger",
        keys=_qwen3_keys,
        changes=_qwen3,
    ),
    "MiniCPMV4_6ForConditionalGeneration": Kind(
        text="",
        text_class="Qwen3_5ForCausalLM",
        type="minicpmv4_6",
        keys=gguf_minicpm_v.keys,
        changes=gguf_minicpm_v.changes,
    ),
    "LlavaForConditionalGeneration": Kind(
        text="",
        text_class="LlamaForCausalLM",
        type="mlp",
        keys=_llava_keys,
        changes=_llava,
    ),
    "LlavaNextForConditionalGeneration": Kind(
        text="",
        text_class="MistralForCausalLM",
        type="mlp",
        keys=_llava_keys,
        changes=_llava,
    ),
    "SmolVLMForConditionalGeneration": Kind(
        text="", text_class="LlamaForCausalLM", type="idefics3", keys=_idefics3_keys
    ),
    "Idefics3ForConditionalGeneration": Kind(
        text="", text_class="LlamaForCausalLM", type="idefics3", keys=_idefics3_keys
    ),
    "InternVLForConditionalGeneration": Kind(
        text="",
        text_class="Qwen2ForCausalLM",
        type="internvl",
        keys=_intern_keys,
        changes=_intern,
    ),
    "Mistral3ForConditionalGeneration": PIXTRAL,
    "Qwen2AudioForConditionalGeneration": Kind(
        text="",
        text_class="Qwen2ForCausalLM",
        type="qwen2a",
        keys=_none,
        changes=_sound,
        part="audio",
    ),
    "VoxtralForConditionalGeneration": Kind(
        text="",
        text_class="LlamaForCausalLM",
        type="voxtral",
        keys=_stacks,
        changes=_sound,
        part="audio",
    ),
}
"""Architecture of the checkpoint -> how it is written."""
