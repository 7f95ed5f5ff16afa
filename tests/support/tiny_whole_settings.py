"""Settings that the tiny checkpoints of `tiny_wholes` need: where the parts of a model with images
or sound must agree, each type's own sizes, tokens and settings of its processor, by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dovetail_testing.tiny.families import VOCAB_SIZE
from support.tiny_configs import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a type's parts must agree on: settings of its config, of the processor, and of those of
    images, sounds and videos; `image_token` is the word for a vector, where it is not that for an
    image, `tokens` are the words of a token id, of a list or of a map of these, and `words` those
    of a tokenizer's own names; `hears` is the class that reads sounds, where transformers lists
    none, and `like` the type whose processor it has, "" for its own."""

    config: Json = field(default_factory=dict)
    image_token: str | None = None
    tokens: dict[str, list[str] | str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    processor: Json = field(default_factory=dict)
    pictures: Json = field(default_factory=dict)
    sounds: Json = field(default_factory=dict)
    videos: Json = field(default_factory=dict)
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
_OMNI_STARTS = {"vision_start_token_id": 3, "vision_end_token_id": 3}
_OMNI_WORDS = {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"}
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
            "high_res_vision_config": {"image_size": 1024, "global_attn_indexes": [1]},
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
    "cohere_compass": Own(
        words={"image_token": "<|IMAGE_PAD|>", "video_token": "<|VIDEO_PAD|>"},
        config={"vision_config": {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}},
        pictures={"patch_size": 16},
    ),
    "deepseek_ocr2": Own(
        config={
            "text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
            "vision_config": {"sam_config": {"downsample_channels": [32, 32]}},
        },
    ),
    "ernie4_5_vl_moe": Own(
        videos={"draw_on_frames": False},
        config={
            "text_config": {
                "moe_intermediate_size": [16, 16],
                "rope_parameters": {**_SPATIAL, "mrope_section": [1, 1, 2]},
            }
        },
    ),
    "chameleon": Own(
        config={"vq_config": {"num_embeddings": 16, "resolution": 64}},
        tokens={
            "vocabulary_map": [
                "<image>",
                *(f"IMGIMG{'AB'[n // 10]}{'ABCDEFGHIJ'[n % 10]}Z" for n in range(16)),
            ]
        },
        words={"image_token": "<image>"},
        processor={"image_seq_length": 16},
        pictures={"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}},
    ),
    "emu3": Own(
        config={"vq_config": {"hidden_size": 128}},
        pictures={"min_pixels": 64 * 64, "max_pixels": 96 * 96},
        tokens={
            "vocabulary_map": [
                *("<image>", "<|extra_200|>"),
                *(f"<|visual token {n:06d}|>" for n in range(32)),
            ]
        },
        words={"image_token": "<image>"},
    ),
    "perception_lm": Own(
        config={
            "projector_pooling_ratio": 2,
            "vision_config": {
                "architecture": "vit_pe_lang_large_patch14_448",
                "model_args": {
                    "embed_dim": 32,
                    "depth": 2,
                    "num_heads": 4,
                    "img_size": [56, 56],
                    "ref_feat_shape": [4, 4],
                },
            },
        },
        processor={"patch_size": 14},
        pictures={"tile_size": 56},
    ),
    "florence2": Own(
        pictures={"image_seq_length": 50},
        config={
            "vision_config": {
                "depths": [1, 1, 1, 1],
                "embed_dim": [16, 16, 32, 32],
                "num_heads": [2, 2, 4, 4],
                "num_groups": [2, 2, 4, 4],
            }
        },
    ),
    "fuyu": Own(tokens={"image_token_ids": ["|SPEAKER|", "|NEWLINE|"]}),
    "gemma3n": Own(
        config={
            "vision_config": {
                "hidden_size": 2048,
                "model_args": {"channel_multiplier": 0.1},
                "vocab_offset": VOCAB_SIZE,
            },
            "audio_config": {"vocab_offset": VOCAB_SIZE + 3, "input_feat_size": 128},
        },
    ),
    "granite4_vision": Own(
        config={
            "vision_config": {"hidden_size": 64, "image_size": 56, "patch_size": 14},
            "image_grid_pinpoints": [[56, 112], [112, 56]],
            "downsample_rate": "1/2",
            "deepstack_layer_map": [[-1, 0], [-2, 1]],
            "spatial_target_layers": [0, 1, 0, 1],
        },
        processor={"patch_size": 14, "downsample_rate": "1/2"},
        pictures={
            "size": _SQUARE,
            "image_grid_pinpoints": [[56, 112], [112, 56]],
            "crop_size": _SQUARE,
        },
    ),
    **dict.fromkeys(("granite_speech", "granite_speech_plus"), Own(config={"window_size": 15})),
    "hunyuan_vl": Own(
        config={
            "text_config": {
                "head_dim": 8,
                "rope_parameters": {**_SPATIAL, "mrope_section": [1, 1, 1, 1]},
            }
        }
    ),
    "lfm3_vl": Own(pictures={"patch_size": 16}),
    "mistral_large4": Own(processor={"patch_size": 14, "spatial_merge_size": 2}),
    "mllama": Own(
        config={
            "vision_config": {
                "image_size": 56,
                "num_global_layers": 1,
                "intermediate_layers_indices": [0],
                "vision_output_dim": 64,
            },
            "text_config": {"cross_attention_layers": [1]},
        },
        pictures={"size": _SQUARE},
    ),
    "molmo2": Own(tokens={"image_patch_id": "<im_patch>"}),
    "moss_transcribe_diarize": Own(config={"audio_config": {"max_source_positions": 1500}}),
    **dict.fromkeys(("muse_glimmer", "muse_spark"), Own(config={"out_hidden_size": 128})),
    "step3p7": Own(
        config={
            "text_config": {
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                "sliding_window": 6,
                "num_sliding_attention_heads": 4,
                "rope_parameters": {
                    kind: {"rope_type": "default", "rope_theta": 1e4}
                    for kind in ("full_attention", "sliding_attention")
                },
            }
        },
    ),
    "unlimited_ocr": Own(
        config={"vision_config": {"sam_config": {"downsample_channels": [32, 32]}}}
    ),
    "qwen2_5_omni": Own(
        config={
            "enable_audio_output": False,
            "thinker_config": {
                **_OMNI_STARTS,
                **_SPATIAL_TEXT,
                "vision_config": {"window_size": 112, "fullatt_block_indexes": [1]},
            },
        },
        words=_OMNI_WORDS,
        sounds={"feature_size": 128},
    ),
    "qwen3_omni_moe": Own(
        config={
            "enable_audio_output": False,
            "thinker_config": {
                **_OMNI_STARTS,
                "text_config": {"rope_parameters": {**_SPATIAL, "mrope_interleaved": True}},
            },
        },
        words=_OMNI_WORDS,
        pictures={"patch_size": 16},
        sounds={"feature_size": 128},
    ),
    "llama4": Own(
        config={"vision_config": {"image_size": 336, "intermediate_size": 128}},
        image_token="<|patch|>",
    ),
    "qianfan_ocr": Own(pictures={"size": {"height": 448, "width": 448}}),
    "video_llama_3": Own(config={"vision_config": {"patch_size": 14}}),
}
"""Model type -> its own settings."""
