"""Random checkpoints of models that take media, with their processors, as transformers saves them.

Needs transformers and Pillow. A family is a function here that returns its config and processor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.multimodal.processors import processor_class
from dovetail_plugins.media_processors.pixtral import PixtralProcessor
from dovetail_plugins.media_processors.voxtral import VoxtralProcessor
from dovetail_testing.tiny.families import FAMILIES
from dovetail_testing.tiny.models import randomize, write_tiny_tokenizer
from support import tiny_gemma4, tiny_minicpm_v, tiny_minimax_m3
from support.tiny_llava import IMAGE_TOKEN, LLAVA_FAMILIES, TEXT, VISION, Made

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}PLACE{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""PLACE stands for the family's own word for an image."""


def write_media_checkpoint(folder: str | Path, architecture: str, **overrides: Any) -> Path:
    """Write config, weights, tokenizer and processor of a random model; return the folder.

    Raises: StopIteration for an architecture that is in no table.
    """
    import torch
    import transformers

    folder = Path(folder)
    tables = (MEDIA_FAMILIES, STATE_FAMILIES, WITHOUT_FILES, SOUND_FAMILIES)
    tokens, build = next(one[architecture] for one in tables if architecture in one)
    tokenizer = media_tokenizer(folder, tokens, NAMES.get(architecture, ()))
    config, processor = build({name: tokenizer.convert_tokens_to_ids(name) for name in tokens})
    for name, value in overrides.items():
        setattr(config.get_text_config(), name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(architecture))
        model = getattr(transformers, CLASSES.get(architecture, architecture))(config)
    randomize(model, seed=len(architecture))
    tiny_gemma4.limit(model)
    model.save_pretrained(folder)
    processor(tokenizer).save_pretrained(folder)
    return folder


def media_tokenizer(folder: Path, tokens: tuple[str, ...], names: tuple[str, ...] = ()) -> Any:
    """Write the tiny tokenizer with more special tokens, which a family's processor may know by
    `names`; return transformers' tokenizer."""
    import transformers

    template = TEMPLATE.replace("PLACE", tokens[0])
    write_tiny_tokenizer(folder, chat_template=template)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["additional_special_tokens"] = list(tokens)
    if names:
        settings["extra_special_tokens"] = dict(zip(names, tokens, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.save_pretrained(folder)
    return tokenizer


PIXTRAL = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")


def _pixtral(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.LlavaConfig(
        vision_config=_pixtral_vision(),
        text_config=hf.MistralConfig(**TEXT, sliding_window=None),
        image_token_id=ids[PIXTRAL[0]],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return config, _pixtral_processor(merge=1)


def _mistral3(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.Mistral3Config(
        vision_config=_pixtral_vision(),
        text_config=hf.MistralConfig(**TEXT, sliding_window=None),
        image_token_index=ids[PIXTRAL[0]],
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    return config, _pixtral_processor(merge=2)


def _pixtral_vision() -> Any:
    import transformers as hf

    return hf.PixtralVisionConfig(**{**VISION, "image_size": 64})


def _pixtral_processor(*, merge: int) -> Callable[[Any], Any]:
    def processor(tokenizer: Any) -> Any:
        import transformers as hf

        patch = VISION["patch_size"]
        pictures = hf.PixtralImageProcessorPil(
            patch_size={"height": patch, "width": patch}, size={"longest_edge": 64}
        )
        return PixtralProcessor(
            image_processor=pictures,
            tokenizer=tokenizer,
            patch_size=patch,
            spatial_merge_size=merge,
        )

    return processor


IDEFICS3 = (IMAGE_TOKEN, "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")


def _idefics3(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.Idefics3Config(
        vision_config=hf.Idefics3VisionConfig(**VISION),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_id=ids[IMAGE_TOKEN],
        scale_factor=2,
    )
    size = VISION["image_size"]

    def processor(tokenizer: Any) -> Any:
        pictures = hf.Idefics3ImageProcessorPil(
            size={"longest_edge": 2 * size}, max_image_size={"longest_edge": size}
        )
        return hf.Idefics3Processor(
            pictures, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template
        )

    return config, processor


def _smolvlm(ids: dict[str, int]) -> Made:
    import transformers as hf
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    config = hf.SmolVLMConfig(
        vision_config=hf.SmolVLMVisionConfig(**VISION),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_id=ids[IMAGE_TOKEN],
        scale_factor=2,
    )
    size = VISION["image_size"]

    def processor(tokenizer: Any) -> Any:
        pictures = SmolVLMImageProcessorPil(
            size={"longest_edge": 2 * size}, max_image_size={"longest_edge": size}
        )
        made = hf.Idefics3Processor(
            pictures, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template
        )
        return Renamed(made, "SmolVLMProcessor")

    return config, processor


class Renamed:
    """A processor that is saved under the name of one that cannot be made here."""

    def __init__(self, made: Any, name: str) -> None:
        self._made, self._name = made, name

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the processor's files."""
        self._made.save_pretrained(folder)
        for file in ("processor_config.json", "preprocessor_config.json"):
            path = Path(folder) / file
            if path.is_file():
                stored = json.loads(path.read_text(encoding="utf-8"))
                path.write_text(json.dumps({**stored, "processor_class": self._name}))


GEMMA3 = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")


def _gemma3(ids: dict[str, int]) -> Made:
    import transformers as hf

    text = {**TEXT, "num_hidden_layers": 4, "head_dim": 8, "sliding_window": 12}
    text |= {"layer_types": ["sliding_attention", "full_attention"] * 2}
    config = hf.Gemma3Config(
        vision_config=hf.SiglipVisionConfig(**VISION),
        text_config=hf.Gemma3TextConfig(**text, query_pre_attn_scalar=8),
        mm_tokens_per_image=4,
        image_token_id=ids[GEMMA3[1]],
        boi_token_index=ids[GEMMA3[0]],
        eoi_token_index=ids[GEMMA3[2]],
    )
    size = {"height": VISION["image_size"], "width": VISION["image_size"]}

    def processor(tokenizer: Any) -> Any:
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

        return hf.Gemma3Processor(
            Gemma3ImageProcessorPil(size=size),
            tokenizer,
            image_seq_length=4,
            chat_template=tokenizer.chat_template,
        )

    return config, processor


INTERNVL = ("<IMG_CONTEXT>", "<img>", "</img>", "<video>")


def _internvl(ids: dict[str, int]) -> Made:
    import transformers as hf

    size = VISION["image_size"]
    config = hf.InternVLConfig(
        vision_config={**VISION, "image_size": [size, size], "patch_size": [8, 8]},
        text_config=hf.Qwen2Config(**TEXT),
        image_token_id=ids[INTERNVL[0]],
        image_seq_length=4,
        downsample_ratio=0.5,
    )

    def processor(tokenizer: Any) -> Any:
        pictures = hf.GotOcr2ImageProcessorPil(size={"height": size, "width": size}, max_patches=4)
        made = processor_class("internvl", "InternVLProcessor")
        return made(pictures, tokenizer, image_seq_length=4, chat_template=tokenizer.chat_template)

    return config, processor


AUDIO = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")


def _qwen2_audio(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.Qwen2AudioConfig(
        audio_config={
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "num_mel_bins": 16,
            "max_source_positions": 50,
        },
        text_config=hf.Qwen2Config(**TEXT),
        audio_token_index=ids[AUDIO[0]],
    )

    def processor(tokenizer: Any) -> Any:
        hears = hf.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
        return hf.Qwen2AudioProcessor(hears, tokenizer, chat_template=tokenizer.chat_template)

    return config, processor


VOXTRAL = ("[AUDIO]", "[BEGIN_AUDIO]")


def _voxtral(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.VoxtralConfig(
        audio_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "num_mel_bins": 16,
            "max_source_positions": 50,
        },
        text_config={**TEXT, "model_type": "llama", "head_dim": 8},
        audio_token_id=ids[VOXTRAL[0]],
    )

    def processor(tokenizer: Any) -> Any:
        hears = hf.WhisperFeatureExtractor(feature_size=16, chunk_length=1)
        return VoxtralProcessor(hears, tokenizer, token_id=ids[VOXTRAL[0]], rows=25)

    return config, processor


QWEN = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
QWEN_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}


def _qwen_ids(ids: dict[str, int]) -> dict[str, int]:
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return dict(zip(names, (ids[token] for token in QWEN), strict=True))


def _qwen_processor(module: str, name: str) -> Callable[[Any], Any]:
    def processor(tokenizer: Any) -> Any:
        import transformers as hf

        pictures = hf.Qwen2VLImageProcessorPil(
            patch_size=8, merge_size=2, min_pixels=16 * 16, max_pixels=48 * 48
        )
        made = processor_class(module, name)
        return made(pictures, tokenizer, chat_template=tokenizer.chat_template)

    return processor


def _qwen2_vl(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.Qwen2VLConfig(
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 32,
            "num_heads": 4,
            "mlp_ratio": 2,
            "patch_size": 8,
        },
        text_config={**TEXT, "rope_parameters": QWEN_ROPE},
        **_qwen_ids(ids),
    )
    return config, _qwen_processor("qwen2_vl", "Qwen2VLProcessor")


def _qwen2_5_vl(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.Qwen2_5_VLConfig(
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 4,
            "patch_size": 8,
            "window_size": 32,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
        },
        text_config={**TEXT, "rope_parameters": QWEN_ROPE},
        **_qwen_ids(ids),
    )
    return config, _qwen_processor("qwen2_5_vl", "Qwen2_5_VLProcessor")


def _qwen3_vl(ids: dict[str, int]) -> Made:
    import transformers as hf

    config = hf.Qwen3VLConfig(vision_config=QWEN3_VISION, text_config=QWEN3_TEXT, **_qwen_ids(ids))
    return config, _qwen_processor("qwen3_vl", "Qwen3VLProcessor")


def _qwen3_vl_moe(ids: dict[str, int]) -> Made:
    import transformers as hf

    experts = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
    config = hf.Qwen3VLMoeConfig(
        vision_config=QWEN3_VISION, text_config={**QWEN3_TEXT, **experts}, **_qwen_ids(ids)
    )
    return config, _qwen_processor("qwen3_vl", "Qwen3VLProcessor")


def _qwen3_5(ids: dict[str, int]) -> Made:
    import transformers as hf

    text = {
        **TEXT,
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "rope_parameters": {**QWEN_ROPE, "mrope_interleaved": True, "partial_rotary_factor": 0.5},
    }
    vision = {**QWEN3_VISION, "deepstack_visual_indexes": []}
    config = hf.Qwen3_5Config(vision_config=vision, text_config=text, **_qwen_ids(ids))
    return config, _qwen_processor("qwen3_vl", "Qwen3VLProcessor")


def _qwen4_exp(ids: dict[str, int]) -> Made:
    import transformers as hf

    _, fields = FAMILIES["Qwen4ExpForCausalLM"]
    rope = {**QWEN_ROPE, "mrope_interleaved": True, "partial_rotary_factor": 0.5}
    text = {**TEXT, **fields, "rope_parameters": rope}
    vision = {**QWEN3_VISION, "deepstack_visual_indexes": []}
    config = hf.Qwen4ExpConfig(vision_config=vision, text_config=text, **_qwen_ids(ids))
    return config, _qwen_processor("qwen3_vl", "Qwen3VLProcessor")


QWEN3_TEXT = {
    **TEXT,
    "head_dim": 8,
    "rope_parameters": {**QWEN_ROPE, "mrope_interleaved": True},
}
QWEN3_VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "patch_size": 8,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
}
MEDIA_FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[dict[str, int]], Made]]] = {
    "Idefics3ForConditionalGeneration": (IDEFICS3, _idefics3),
    "Gemma3ForConditionalGeneration": (GEMMA3, _gemma3),
    "Gemma4ForConditionalGeneration": (tiny_gemma4.TOKENS, tiny_gemma4.small),
    "LargeGemma4ForConditionalGeneration": (tiny_gemma4.TOKENS, tiny_gemma4.large),
    "InternVLForConditionalGeneration": (INTERNVL, _internvl),
    **LLAVA_FAMILIES,
    "MiniMaxM3SparseForConditionalGeneration": (tiny_minimax_m3.TOKENS, tiny_minimax_m3.made),
    "Mistral3ForConditionalGeneration": (PIXTRAL, _mistral3),
    "Qwen2VLForConditionalGeneration": (QWEN, _qwen2_vl),
    "Qwen2_5_VLForConditionalGeneration": (QWEN, _qwen2_5_vl),
    "Qwen3VLForConditionalGeneration": (QWEN, _qwen3_vl),
    "Qwen3VLMoeForConditionalGeneration": (QWEN, _qwen3_vl_moe),
    "PixtralForConditionalGeneration": (PIXTRAL, _pixtral),
    "SmolVLMForConditionalGeneration": (IDEFICS3, _smolvlm),
}
STATE_FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[dict[str, int]], Made]]] = {
    "Qwen3_5ForConditionalGeneration": (QWEN, _qwen3_5),
    "MiniCPMV4_6ForConditionalGeneration": (tiny_minicpm_v.TOKENS, tiny_minicpm_v.made),
}
"""Families whose text models keep states."""
WITHOUT_FILES: dict[str, tuple[tuple[str, ...], Callable[[dict[str, int]], Made]]] = {
    "Qwen4ExpForConditionalGeneration": (QWEN, _qwen4_exp),
}
"""The same, of which there are no GGUF files."""
SOUND_FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[dict[str, int]], Made]]] = {
    "Qwen2AudioForConditionalGeneration": (AUDIO, _qwen2_audio),
    "VoxtralForConditionalGeneration": (VOXTRAL, _voxtral),
}
"""Architecture -> its special tokens, the one for an image or a sound first, and what makes its
config and processor of their ids."""
NAMES = {
    "Gemma3ForConditionalGeneration": ("boi_token", "image_token", "eoi_token"),
    "Gemma4ForConditionalGeneration": tiny_gemma4.NAMES,
    "LargeGemma4ForConditionalGeneration": tiny_gemma4.NAMES,
    "MiniCPMV4_6ForConditionalGeneration": tiny_minicpm_v.NAMES,
    "InternVLForConditionalGeneration": (
        *("context_image_token", "start_image_token", "end_image_token", "video_token"),
    ),
}
"""Architecture -> what its tokenizer calls its special tokens."""
CLASSES = {
    "PixtralForConditionalGeneration": "LlavaForConditionalGeneration",
    "LargeGemma4ForConditionalGeneration": "Gemma4ForConditionalGeneration",
}
"""Families that transformers has under another name."""
