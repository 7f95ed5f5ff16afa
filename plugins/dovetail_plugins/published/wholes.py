"""Published models that take images or sound, whose text model is a class that is served: that part
of them is served, under the text model's own names.

transformers has no class for these, so nothing reads their images; where the same model is also
published in transformers' layout, that one is served with them. Of Qwen Omni, the part that writes
text is served with images and sound.
Sources: config.json and the tensor names of the checkpoints on the Hugging Face Hub that each entry
names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.config.checkpoint.spellings import DTYPES, WHOLE_FIRST
from dovetail_plugins.published.fallback import class_of, is_known
from dovetail_plugins.published.layout import Json, Published, part_of, refuse

IMAGES, SOUND = "images", "images or sound"
_QUANTIZED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
"""Lists of modules in quantization_config, as the methods call them."""
_MEDIA_KEYS = ("vision_config", "audio_config", "vision_tower", "visual", "auto_map")


def _nested(key: str, prefix: str) -> Callable[[Json], Json]:
    """Return what makes the text model's config of its settings under `key`. The whole's settings
    fill in those that concern both. Names of modules lose the `prefix`."""

    def config(raw: Json) -> Json:
        own = {name: value for name, value in part_of(raw, key).items() if value is not None}
        whole = {name: raw[name] for name in WHOLE_FIRST if raw.get(name) is not None}
        dtypes = {name: whole[name] for name in DTYPES if name in whole}
        if dtypes:
            own = {name: value for name, value in own.items() if name not in DTYPES}
        named = {"architectures": [_class_of_part(own, key)]}
        return _with_modules({**whole, **own, **dtypes, **named}, prefix)

    return config


def _class_of_part(part: Json, key: str) -> str:
    """Return the class of a text part: the one that it names, or its model type's."""
    names = part.get("architectures")
    named = str(names[0]) if isinstance(names, list) and names else ""
    found = named if is_known(named) else class_of(part)
    if found is not None:
        return found
    raise refuse(
        f"the text model is {named or part.get('model_type')}, which is not served.",
        f"{key}.architectures",
        "use a model whose text part docs/reference/architectures.md lists.",
    )


def _with_modules(config: Json, prefix: str) -> Json:
    """Return a config whose quantization names the text model's modules without a prefix."""
    stored = config.get("quantization_config")
    if not isinstance(stored, dict):
        return config
    lists = {name: stored[name] for name in _QUANTIZED if isinstance(stored.get(name), list)}
    renamed = {
        name: [str(one).removeprefix(prefix) for one in each] for name, each in lists.items()
    }
    return {**config, "quantization_config": {**stored, **renamed}}


def _flat(name: str, model_type: str, **more: Any) -> Callable[[Json], Json]:
    """Return what makes the text model's config of one that has all settings at its top."""

    def config(raw: Json) -> Json:
        own = {key: value for key, value in raw.items() if key not in _MEDIA_KEYS}
        return {**own, "architectures": [name], "model_type": model_type, **more}

    return config


def _latent(key: str, prefix: str) -> Callable[[Json], Json]:
    """Return the same for text models of which some have no latent attention."""
    nested = _nested(key, prefix)

    def config(raw: Json) -> Json:
        if part_of(raw, key).get("use_mla") is False:
            raise refuse(
                "experts without latent attention are served by no class here.",
                f"{key}.use_mla",
                "use a larger model of the family, which has it.",
            )
        return nested(raw)

    return config


def _without_sections(name: str, model_type: str) -> Callable[[Json], Json]:
    """Return the same for positions in three dimensions, which are one in a text."""
    flat = _flat(name, model_type)

    def config(raw: Json) -> Json:
        scaling = raw.get("rope_scaling")
        kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
        is_sections = kind in ("default", "mrope")
        return {**flat(raw), **({"rope_scaling": None} if is_sections else {})}

    return config


_MINICPM_V = {
    "2.0": ("MiniCPMForCausalLM", "minicpm"),
    "2.5": ("LlamaForCausalLM", "llama"),
    "2.6": ("Qwen2ForCausalLM", "qwen2"),
    "4.0": ("LlamaForCausalLM", "llama"),
    "4": ("LlamaForCausalLM", "llama"),
    "4.5": ("Qwen3ForCausalLM", "qwen3"),
}
"""`version` in config.json -> class and model type of the text model."""


def _minicpm_v(raw: Json) -> Json:
    version = str(raw.get("version"))
    if version not in _MINICPM_V:
        raise refuse(
            f"the text model of version {version} is not known here.",
            "version",
            f"known are {', '.join(_MINICPM_V)}; use a model of one of these.",
        )
    name, model_type = _MINICPM_V[version]
    return _flat(name, model_type)(raw)


def _behind(key: str, prefix: str, *ignored: str, lacks: str = IMAGES) -> Published:
    """Return a model whose text part has its settings under `key` and its tensors after
    `prefix`."""
    return Published(
        config=_nested(key, prefix), prefixes=((prefix, ""),), ignored=ignored, lacks=lacks
    )


_LANGUAGE = "language_model."
_INTERNVL = _behind("llm_config", _LANGUAGE, "vision_model.", "mlp1.")
_MINICPM_PARTS = Published(
    config=_minicpm_v,
    prefixes=(("llm.", ""),),
    ignored=("vpm.", "resampler.", "apm.", "audio_projection_layer.", "audio_avg_pooler.", "tts."),
    lacks=SOUND,
)
_OVIS = _behind("llm_config", "llm.", "visual_tokenizer.", "vte.")
_JANUS = ("vision_model.", "aligner.", "gen_")


def _llava(name: str, model_type: str) -> Published:
    parts = ("vision_tower.", "mm_projector.", "image_newline", "vision_resampler.", "mm_")
    ignored = tuple(f"model.{part}" for part in parts)
    return Published(config=_flat(name, model_type), ignored=ignored, lacks=IMAGES)


def _keye() -> Published:
    config = _without_sections("Qwen3ForCausalLM", "qwen3")
    return Published(config=config, ignored=("visual.", "mlp_AR."), lacks=IMAGES)


_OMNI = _behind("thinker_config", "thinker.", "talker.", "token2wav.", "code2wav.", lacks="")
"""The part that writes text, of images and sound, too; those that speak are left out."""
WHOLES: dict[str, Published] = {
    # Qwen/Qwen2.5-Omni-7B, Qwen/Qwen3-Omni-30B-A3B-Instruct
    **dict.fromkeys(("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"), _OMNI),
    "Qwen3OmniMoeForConditionalGeneration": _OMNI,
    # OpenGVLab/InternVL2_5-8B, InternVL3-8B, InternVL3_5-8B and models of the same code
    **dict.fromkeys(("InternVLChatModel", "H2OVLChatModel", "SkyworkR1VChatModel"), _INTERNVL),
    # nvidia/NVLM-D-72B, nvidia/Llama-3.1-Nemotron-Nano-VL-8B-V1
    **dict.fromkeys(("NVLM_D", "NVLM_D_Model", "Llama_Nemotron_Nano_VL"), _INTERNVL),
    # nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL, nvidia/Nemotron-Nano-Omni
    **dict.fromkeys(
        ("NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3"),
        _behind(
            *("llm_config", _LANGUAGE, "vision_model.", "mlp1."),
            *("sound_encoder.", "sound_projection."),
            lacks=SOUND,
        ),
    ),
    # openbmb/MiniCPM-V-2_6, openbmb/MiniCPM-o-2_6
    **dict.fromkeys(("MiniCPMV", "MiniCPMO"), _MINICPM_PARTS),
    # AIDC-AI/Ovis1.6, Ovis2 and Ovis2.5
    **dict.fromkeys(("Ovis", "Ovis2_5"), _OVIS),
    # deepseek-ai/deepseek-vl2
    "DeepseekVLV2ForCausalLM": Published(
        config=_latent("language_config", "language."),
        prefixes=(("language.", ""),),
        ignored=("vision.", "projector.", "image_newline", "view_seperator", "tile_indicators"),
        lacks=IMAGES,
    ),
    # deepseek-ai/deepseek-vl-7b-chat, deepseek-ai/Janus-Pro-7B
    "MultiModalityCausalLM": _behind("language_config", _LANGUAGE, *_JANUS),
    # moonshotai/Kimi-VL-A3B-Instruct
    "KimiVLForConditionalGeneration": _behind(
        "text_config", _LANGUAGE, "vision_tower.", "multi_modal_projector."
    ),
    # MiniMaxAI/MiniMax-VL-01
    "MiniMaxVL01ForConditionalGeneration": _behind(
        *("text_config", _LANGUAGE, "vision_tower.", "multi_modal_projector.", "image_newline")
    ),
    # naver-hyperclovax/HyperCLOVAX-SEED-Vision-Instruct-3B
    "HCXVisionForCausalLM": _behind(
        *("text_config", _LANGUAGE, "vision_model.", "mm_projector.", "image_newline")
    ),
    # microsoft/Phi-4-multimodal-instruct: its adapters of images and sound are used for those alone
    "Phi4MMForCausalLM": Published(
        config=_flat("Phi3ForCausalLM", "phi3"),
        renames=((".base_layer.", "."),),
        ignored=("embed_tokens_extend.", ".lora_A.", ".lora_B."),
        lacks=SOUND,
    ),
    # microsoft/Phi-3.5-vision-instruct
    "Phi3VForCausalLM": Published(
        config=_flat("Phi3ForCausalLM", "phi3"),
        ignored=("model.vision_embed_tokens.",),
        lacks=IMAGES,
    ),
    # liuhaotian/llava-v1.5-7b, llava-v1.6-mistral-7b, lmms-lab/llava-onevision-qwen2-7b-ov
    "LlavaLlamaForCausalLM": _llava("LlamaForCausalLM", "llama"),
    "LlavaMistralForCausalLM": _llava("MistralForCausalLM", "mistral"),
    "LlavaQwenForCausalLM": _llava("Qwen2ForCausalLM", "qwen2"),
    "LlavaQwen2ForCausalLM": _llava("Qwen2ForCausalLM", "qwen2"),
    # Kwai-Keye/Keye-VL-8B-Preview, Keye-VL-1_5-8B
    "KeyeForConditionalGeneration": _keye(),
    "KeyeVL1_5ForConditionalGeneration": _keye(),
    # rednote-hilab/dots.ocr
    "DotsOCRForCausalLM": Published(
        config=_flat("Qwen2ForCausalLM", "qwen2"), ignored=("vision_tower.",), lacks=IMAGES
    ),
}
"""Published class -> how its text part is read."""
