"""A random checkpoint, with its processor, of any model that transformers has with images or sound.

The config is shrunk by `tiny_configs`; the processor is the class's own with its own defaults, over
the tiny tokenizer with the special tokens that its source names. Needs transformers and Pillow.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dovetail.config.sections.convert import merge_deep
from dovetail.errors import ConfigError
from dovetail.multimodal.processors import VIDEO_PART, processor_class
from dovetail_testing.tiny.models import randomize, write_tiny_tokenizer
from support.tiny_configs import MOST_PARAMETERS, Json, tiny_config
from support.tiny_media import MEDIA_FAMILIES, SOUND_FAMILIES, write_media_checkpoint

WORD = re.compile(r"""["'](<[^"'\s{}]{2,40}>|\[[A-Z_]+\])["']""")
"""A special token in a processor's source."""
ATTRIBUTE = re.compile(r"tokenizer,? ?(?:\.|\")(\w+_token)\b|tokenizer\.(\w+_token)_id\b")
"""A special token that a processor asks its tokenizer for by name."""
HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
POSITIONS = 8192
USUAL = ("bos_", "eos_", "pad_", "unk_", "add_")
"""Starts of the names of what any tokenizer has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a type's parts must agree on: settings of its config, of the processor, and of those of
    images and sounds; `image_token` is the word for a vector, where it is not that for an image,
    `tokens` are the words of a list of token ids, and `words` those of a tokenizer's own names;
    `hears` is the class that reads sounds, where transformers lists none, and `like` the type whose
    processor it has, "" for its own."""

    config: Json = field(default_factory=dict)
    image_token: str | None = None
    tokens: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    processor: Json = field(default_factory=dict)
    pictures: Json = field(default_factory=dict)
    sounds: Json = field(default_factory=dict)
    hears: str = "WhisperFeatureExtractor"
    like: str = ""


_SQUARE = {"height": 56, "width": 56}
_SPATIAL = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
_SPATIAL_TEXT = {"text_config": {"rope_parameters": _SPATIAL}}
_GLM = Own(
    config={
        "text_config": {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": {**_SPATIAL, "partial_rotary_factor": 0.5},
        },
        "vision_config": {"hidden_size": 16, "num_heads": 2},
    },
    words={
        "image_token": "<|image|>",
        "video_token": "<|video|>",
        "image_start_token": "<|begin_of_image|>",
        "image_end_token": "<|end_of_image|>",
    },
)
_WHISPER = Own(
    config={"audio_config": {"max_source_positions": 1500}}, sounds={"feature_size": 128}
)
_WINDOWED = Own(config={"vision_config": {"window_size": 112, "fullatt_block_indexes": [1]}})
OWN: dict[str, Own] = {
    "aria": Own(
        config={"vision_config": {"image_size": 490, "patch_size": 14}},
        pictures={"max_image_size": 490},
    ),
    "audioflamingo3": Own(
        config={"audio_config": {"max_source_positions": 50, "num_mel_bins": 16}},
        sounds={"feature_size": 16, "chunk_length": 1},
    ),
    "aya_vision": Own(
        config={"vision_config": {"image_size": 56}},
        image_token="<|IMG_PATCH|>",
        processor={"img_size": 56},
        pictures={"size": _SQUARE},
    ),
    "deepseek_vl": Own(
        config={"vision_config": {"image_size": 64}},
        processor={"num_image_tokens": 16},
        pictures={"size": {"height": 64, "width": 64}},
    ),
    "deepseek_vl_hybrid": Own(
        config={
            "vision_config": {"image_size": 384},
            "high_res_vision_config": {"image_size": 1024},
        },
    ),
    "cohere2_vision": Own(
        config={"vision_config": {"image_size": 512, "patch_size": 16}, "downsample_factor": 2},
    ),
    "dots3_note": Own(
        config={"audio_config": {"feature_size": 128, "conv_output_size": 512}},
        pictures={"temporal_patch_size": 1},
    ),
    "exaone4_5": _WINDOWED,
    **dict.fromkeys(("glm4v", "glm46v"), _GLM),
    "glm4v_moe": replace(_GLM, like="glm4v"),
    "glm_ocr": replace(_GLM, like="glm46v"),
    "janus": Own(
        config={"vision_config": {"image_size": 64, "num_image_tokens": 16}},
        processor={"num_image_tokens": 16},
        pictures={"size": {"height": 64, "width": 64}},
        words={
            "image_token": "<image_placeholder>",
            "boi_token": "<begin_of_image>",
            "eoi_token": "<end_of_image>",
        },
    ),
    "kimi_k25": Own(
        config={
            "text_config": {"num_nextn_predict_layers": 0},
            "vision_config": {
                "hidden_size": 16,
                "num_attention_heads": 2,
                "pos_emb_height": 8,
                "pos_emb_width": 8,
            },
            "projection_hidden_size": 16,
        },
        words={
            "image_token": "<|media_pad|>",
            "video_token": "<|kimi_k25_video_placeholder|>",
            "vision_start_token": "<|media_begin|>",
            "vision_end_token": "<|media_end|>",
        },
    ),
    "lighton_ocr": Own(
        words={
            "image_token": "<|image_pad|>",
            "image_break_token": "<|vision_pad|>",
            "image_end_token": "<|vision_end|>",
        },
        pictures={"size": {"longest_edge": 112}, "patch_size": {"height": 14, "width": 14}},
        config={"vision_config": {"image_size": 112}},
    ),
    "paddleocr_vl": Own(
        config={**_SPATIAL_TEXT, "vision_config": {"image_size": 126}},
        words={
            "image_token": "<|IMAGE_PLACEHOLDER|>",
            "image_start_token": "<|IMAGE_START|>",
            "image_end_token": "<|IMAGE_END|>",
        },
        pictures={"size": {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}},
    ),
    "got_ocr2": Own(
        pictures={"size": {"height": 1024, "width": 1024}},
    ),
    "glmasr": Own(
        config={
            "audio_config": {
                "hidden_size": 64,
                "intermediate_size": 256,  # four frames to a vector
                "num_attention_heads": 4,
                "max_position_embeddings": 100,
                "num_mel_bins": 16,
            }
        },
        sounds={"feature_size": 16, "chunk_length": 2},
    ),
    "musicflamingo": _WHISPER,
    "paligemma": Own(
        config={"vision_config": {"image_size": 56, "patch_size": 14}},
        words={"image_token": "<image>"},
        pictures={"size": _SQUARE, "image_seq_length": 16},
    ),
    "phi4_multimodal": Own(
        config={
            "vision_config": {"image_size": 448, "crop_size": 448, "num_hidden_layers": 3},
            "audio_config": {
                "num_blocks": 3,
                "input_size": 80,
                "ext_pw_out_channel": 32,
                "depthwise_separable_out_channel": 32,
                "nemo_conv_channels": 32,
            },
            "num_key_value_heads": 2,
        },
    ),
    "hyperclovax_vision_v2": _WINDOWED,
    **dict.fromkeys(
        ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"),
        Own(config={"vision_config": {"patch_size": 14}, "insert_layer_id": 0}),
    ),
    "lfm2_vl": Own(
        config={"vision_config": {"patch_size": 16, "vision_use_head": False}},
        words={
            "image_token": "<image>",
            "image_start_token": "<|image_start|>",
            "image_end_token": "<|image_end|>",
            "image_thumbnail_token": "<|img_thumbnail|>",
        },
    ),
    **dict.fromkeys(
        ("qwen3_5", "qwen3_5_moe", "qwen4_exp"),
        Own(
            config={
                "vision_config": {"patch_size": 14},
                "text_config": {
                    "rope_parameters": {
                        **_SPATIAL,
                        "mrope_interleaved": True,
                        "partial_rotary_factor": 1.0,
                    }
                },
            }
        ),
    ),
    "nemotron_h_omni": Own(
        hears="ParakeetFeatureExtractor",
        config={
            "audio_config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 32,
                "conv_kernel_size": 3,
                "subsampling_conv_channels": 8,
                "projection_hidden_size": 16,
                "projection_bias": False,
            }
        },
    ),
    "ovis2": Own(
        image_token="<IMG_ATOM>",
        tokens={
            "visual_indicator_token_ids": ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_END>"]
        },
        pictures={"size": {"height": 224, "width": 224}},
    ),
    "video_llama_3": Own(config={"vision_config": {"patch_size": 14}}),
}
"""Model type -> its own settings."""


def write_whole(
    folder: str | Path, model_type: str, architecture: str, *, is_bare: bool = False
) -> Path:
    """Write config, weights, tokenizer and, if not `is_bare`, processor; return the folder.

    Raises: ConfigError where transformers' own classes cannot be made small
    """
    try:
        if architecture in {**MEDIA_FAMILIES, **SOUND_FAMILIES}:
            return write_media_checkpoint(folder, architecture)
        return _write(Path(folder), model_type, architecture, is_bare=is_bare)
    except Exception as error:  # whatever transformers' own classes raise
        told = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"no small checkpoint of {model_type}: {type(error).__name__}: {told}"
        ) from error


def _write(folder: Path, model_type: str, architecture: str, *, is_bare: bool) -> Path:
    import torch
    import transformers

    own = OWN.get(model_type, Own())
    made = _processor_class(own.like or model_type)
    tokenizer = _tokenizer(folder, made, own)
    processor: Any = SimpleNamespace(tokenizer=tokenizer, **own.words)
    if not is_bare:
        processor = _processor(made, own.like or model_type, tokenizer, own)
    config = whole_config(model_type)
    config.architectures = [architecture]
    _fit(config, processor, len(tokenizer), own)
    kind = getattr(transformers, architecture)
    with torch.device("meta"):
        size = sum(p.numel() for p in kind(config).parameters())
    if size > 3 * MOST_PARAMETERS:
        raise ConfigError(f"the small config of {model_type} still has {size} parameters.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(model_type))
        model = kind(config)
    randomize(model, seed=len(model_type))
    model.save_pretrained(folder)
    if not is_bare:
        processor.save_pretrained(folder)
    return folder


def _processor_class(model_type: str) -> type[Any]:
    """Return the processor's class, without its part for videos where torchvision is missing."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    name = PROCESSOR_MAPPING_NAMES[model_type]
    module = transformers._class_to_module[name].rpartition(".")[2]  # type: ignore[attr-defined]
    if HAS_TORCHVISION:
        return getattr(transformers, name)
    return processor_class(module.removeprefix("processing_"), name)


def _tokenizer(folder: Path, processor: type[Any], own: Own) -> Any:
    """Write and return the tiny tokenizer with the special tokens that a processor's source has,
    and a type's own."""
    import transformers

    source = "".join(
        inspect.getsource(one)
        for one in processor.__mro__
        if one.__module__.startswith("transformers.models.")
    )
    names = {a or b for a, b in ATTRIBUTE.findall(source)}
    words = dict.fromkeys((*WORD.findall(source), *itertools.chain(*own.tokens.values())))
    named = {name: f"<|{name}|>" for name in sorted(names) if not name.startswith(USUAL)}
    named |= own.words
    write_tiny_tokenizer(folder, chat_template=TEMPLATE)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["additional_special_tokens"] = [*words, *named.values()]
    settings["extra_special_tokens"] = named
    settings["unk_token"] = "<|pad|>"
    file.write_text(json.dumps(settings), encoding="utf-8")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*words, *named.values()]})
    tokenizer.save_pretrained(folder)
    return tokenizer


def whole_config(model_type: str) -> Any:
    """Return a small config with a type's own settings laid over it."""
    own = OWN.get(model_type, Own())
    small = tiny_config(model_type)
    fields = small.to_dict()
    merge_deep(fields, own.config)
    fields.pop("model_type")
    return type(small)(**fields)


def _processor(made: type[Any], model_type: str, tokenizer: Any, own: Own) -> Any:
    """Return a processor with its parts' own settings."""
    import transformers
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

    parts: dict[str, Any] = {"tokenizer": tokenizer}
    for name in made.get_attributes():
        if name == "image_processor":
            parts[name] = _pictures(
                IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type), made, own.pictures
            )
        elif name == VIDEO_PART and HAS_TORCHVISION:
            named = VIDEO_PROCESSOR_MAPPING_NAMES[model_type]
            found = named if isinstance(named, str) else next(iter(named.values()))
            parts[name] = getattr(transformers, found)()
        elif name in ("feature_extractor", "audio_processor"):
            found = FEATURE_EXTRACTOR_MAPPING_NAMES.get(model_type, own.hears)
            parts[name] = getattr(transformers, found)(**own.sounds)
    return made(**parts, **own.processor)


def _pictures(names: Any, made: type[Any], settings: Json) -> Any:
    """Return a processor of images: the type's, or that beside the class of its processor; one that
    needs no torchvision where that is missing."""
    import transformers

    told = [names] if isinstance(names, str) else [*(names or {}).values()]
    modules: dict[str, str] = transformers._class_to_module  # type: ignore[attr-defined]
    package = made.__module__.split(".")[2]
    told += [name for name, module in modules.items()
             if module.startswith(f"models.{package}.image_processing")]  # fmt: skip
    end = "" if HAS_TORCHVISION else "Pil"
    for name in [f"{one.removesuffix('Fast').removesuffix('Pil')}{end}" for one in told if one]:
        if name in modules:
            return getattr(transformers, name)(**settings)
    raise ConfigError(f"{made.__name__} has no processor of images without torchvision.")


def _fit(config: Any, processor: Any, vocab_size: int, own: Own) -> None:
    """Give a config the processor's tokens, a vocabulary with them, and a long context. Mutates:
    config"""
    known = processor.tokenizer.convert_tokens_to_ids
    for one in {id(c): c for c in (config, config.get_text_config())}.values():
        if hasattr(one, "vocab_size"):
            one.vocab_size = vocab_size
        if hasattr(one, "max_position_embeddings"):
            one.max_position_embeddings = POSITIONS
    parts = [one for one in vars(config).values() if hasattr(one, "to_dict")]
    for holder, name in [(one, name) for one in (config, *parts) for name in list(vars(one))]:
        found = re.fullmatch(r"(\w+_token)_(id|index)", name)
        word = found and getattr(processor, found[1], None)
        if own.image_token and found and found[1] == "image_token":
            word = own.image_token
        if isinstance(word, str):
            setattr(holder, name, known(word))
    for name, words in own.tokens.items():
        setattr(config, name, known(words))
