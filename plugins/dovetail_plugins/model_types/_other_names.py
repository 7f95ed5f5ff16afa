"""Settings that transformers reads under two names, by the model types that have them.

Source: `attribute_map` of the config classes of transformers 5; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping

_PAIRS: dict[tuple[str, str], str] = {
    ("activation_function", "hidden_act"): "exaone",
    ("attention_head_dim", "head_dim"): "hunyuan_vl_text",
    ("attention_probs_dropout_prob", "attention_dropout"): "bigbird_pegasus led",
    ("audio_token_id", "audio_token_index"): (
        "granite_speech granite_speech_plus qwen2_5_omni_thinker qwen2_audio"
    ),
    ("bias", "mlp_bias"): "internlm3",
    ("boi_token_id", "boi_token_index"): "gemma3 llama4 shieldgemma2",
    ("bos_index", "bos_token_id"): "flaubert xlm",
    ("decoder_attention_heads", "num_heads"): "pix2struct_text_model",
    ("decoder_layers", "num_layers"): "pix2struct_text_model",
    ("embedding_multiplier", "logits_mup_width_multiplier"): "inkling_text",
    ("encoder_attention_heads", "num_heads"): "pix2struct_text_model",
    ("encoder_layers", "num_layers"): "pix2struct_text_model",
    ("eoi_token_id", "eoi_token_index"): "gemma3 llama4 shieldgemma2 t5gemma2",
    ("eos_index", "eos_token_id"): "flaubert xlm",
    ("head_dim", "attention_head_dim"): "zamba zamba2",
    ("head_dim", "d_kv"): "longt5 mt5 t5 umt5",
    ("head_dim", "kv_channels"): "jetmoe",
    ("head_dim", "qk_rope_head_dim"): "glm4_moe_lite",
    ("hidden_act", "decoder_hidden_act"): "moonshine",
    ("hidden_size", "d_model"): (
        "bart bigbird_pegasus blenderbot blenderbot-small dbrx fsmt funnel led longt5 "
        "m2m_100 marian mbart mpt mt5 mvp nllb-moe pegasus pegasus_x plbart pop2piano "
        "pp_formulanet_text speech_to_text switch_transformers t5 trocr udop umt5 whisper "
        "xglm xlnet"
    ),
    ("hidden_size", "dim"): "distilbert",
    ("hidden_size", "emb_dim"): "flaubert xlm",
    ("hidden_size", "embed_dim"): "kosmos_2_5_text_model kosmos_2_text_model",
    ("hidden_size", "n_embd"): "codegen ctrl gpt-sw3 gpt2 gpt_bigcode gptj openai-gpt",
    ("image_token_id", "image_patch_id"): "molmo2",
    ("image_token_id", "image_token_index"): (
        "aria aya_vision blip-2 fast_vlm gemma3 got_ocr2 granite4_vision instructblip "
        "llama4 llava llava_next llava_next_video llava_onevision minimax_m3_vl mistral3 "
        "mistral_large4 mllama paligemma pp_chart2table qwen2_5_omni_thinker shieldgemma2 "
        "t5gemma2 video_llava vipllava"
    ),
    ("initializer_range", "init_std"): "led plbart",
    ("intermediate_size", "ffn_hidden_size"): "longcat_flash",
    ("intermediate_size", "moe_intermediate_size"): "deepseek_v4 inkling2_loop_text inkling2_text",
    ("layer_norm_eps", "rms_norm_eps"): "molmo2_text",
    ("layer_norm_epsilon", "rms_norm_eps"): "exaone",
    ("layer_types", "layers_block_type"): "bamba falcon_h1 nemotron_h recurrent_gemma zamba zamba2",
    ("layers_block_type", "layer_types"): "granitemoehybrid",
    ("max_position_embeddings", "context_length"): "rwkv",
    ("max_position_embeddings", "max_seq_len"): "dbrx",
    ("max_position_embeddings", "model_max_length"): "bailing_hybrid kimi_linear",
    ("max_position_embeddings", "n_positions"): (
        "codegen ctrl gpt-sw3 gpt2 gpt_bigcode gptj openai-gpt"
    ),
    ("model_max_length", "max_position_embeddings"): (
        "inkling2_loop_text inkling2_text inkling_text"
    ),
    ("moe_intermediate_size", "expert_ffn_hidden_size"): "longcat_flash",
    ("moe_num_experts", "n_routed_experts"): "step3p5",
    ("moe_top_k", "num_experts_per_tok"): "step3p5",
    ("n_group", "num_expert_group"): "bailing_hybrid kimi_linear",
    ("n_shared_experts", "num_shared_experts"): "bailing_hybrid kimi_linear",
    ("n_token", "vocab_size"): "xlnet",
    ("n_words", "vocab_size"): "flaubert xlm",
    ("norm_topk_prob", "moe_renormalize"): "bailing_hybrid kimi_linear",
    ("num_attention_groups", "num_key_value_heads"): "step3p5",
    ("num_attention_heads", "attention_heads"): "kosmos_2_5_text_model kosmos_2_text_model xglm",
    ("num_attention_heads", "decoder_attention_heads"): "seamless_m4t seamless_m4t_v2 trocr",
    ("num_attention_heads", "decoder_num_attention_heads"): "moonshine",
    ("num_attention_heads", "encoder_attention_heads"): (
        "bart bigbird_pegasus blenderbot blenderbot-small fsmt led m2m_100 marian mbart mvp "
        "nllb-moe pegasus pegasus_x plbart pp_formulanet_text speech_to_text speecht5 whisper"
    ),
    ("num_attention_heads", "n_head"): (
        "bloom codegen ctrl funnel gpt-sw3 gpt2 gpt_bigcode gptj openai-gpt xlnet"
    ),
    ("num_attention_heads", "n_heads"): "dbrx distilbert flaubert mpt xlm",
    ("num_attention_heads", "num_encoder_attention_heads"): "prophetnet",
    ("num_attention_heads", "num_heads"): (
        "gpt_neo longt5 mt5 pix2struct_text_model pop2piano switch_transformers t5 udop umt5"
    ),
    ("num_experts", "moe_num_experts"): "ernie4_5_moe ernie4_5_vl_moe_text",
    ("num_experts", "n_routed_experts"): (
        "deepseek_ocr2_text deepseek_v2 sarvam_mla sarvam_moe unlimited_ocr_text"
    ),
    ("num_experts", "num_local_experts"): (
        "gpt_oss kolibri1 mellum minimax minimax_m2 minimax_m3_vl_text mixtral qwen3_moe "
        "qwen3_vl_moe_text"
    ),
    ("num_experts_per_tok", "moe_k"): "ernie4_5_moe ernie4_5_vl_moe_text",
    ("num_experts_per_tok", "moe_topk"): "hunyuan_v1_moe longcat_flash",
    ("num_experts_per_tok", "num_experts_per_token"): "bailing_hybrid kimi_linear",
    ("num_hidden_layers", "decoder_layers"): "seamless_m4t seamless_m4t_v2 trocr",
    ("num_hidden_layers", "decoder_num_hidden_layers"): "moonshine",
    ("num_hidden_layers", "encoder_layers"): (
        "bart bigbird_pegasus blenderbot blenderbot-small fsmt led m2m_100 marian mbart mvp "
        "nllb-moe pegasus pegasus_x plbart pp_formulanet_text speech_to_text speecht5 whisper"
    ),
    ("num_hidden_layers", "layers"): "kosmos_2_5_text_model kosmos_2_text_model",
    ("num_hidden_layers", "n_layer"): (
        "bloom codegen ctrl gpt-sw3 gpt2 gpt_bigcode gptj openai-gpt xlnet"
    ),
    ("num_hidden_layers", "n_layers"): "dbrx distilbert flaubert mpt xlm",
    ("num_hidden_layers", "num_layers"): (
        "gpt_neo longt5 mt5 pix2struct_text_model pop2piano switch_transformers t5 udop umt5 xglm"
    ),
    ("num_key_value_heads", "decoder_num_key_value_heads"): "moonshine",
    ("num_key_value_heads", "encoder_attention_heads"): "whisper",
    ("num_layers", "num_hidden_layers"): "exaone",
    ("num_local_experts", "n_routed_experts"): (
        "axk1 axk2 deepseek_v3 deepseek_v32 deepseek_v4 dots1 dots3_note_text glm4_moe "
        "glm4_moe_lite glm4v_moe_text glm5_next_text glm_moe_dsa hy_v4 hy_v4_vl_text "
        "inkling2_loop_text inkling2_text inkling_text longcat_flash mimo_v2_flash "
        "mistral4 mistral_large4_text nemotron_h sarvam_mla sarvam_moe solar_open step3p5"
    ),
    ("num_local_experts", "num_experts"): (
        "bailing_hybrid flex_olmo hunyuan_v1_moe hy_v3 jamba kimi_linear olmoe"
    ),
    ("num_mtp_layers", "num_nextn_predict_layers"): (
        "bailing_hybrid deepseek_v3 glm4_moe mellum sarvam_mla sarvam_moe step3p5"
    ),
    ("num_shared_experts", "n_shared_experts"): "sarvam_mla sarvam_moe",
    ("org_vocab_size", "vocab_size"): "hunyuan_vl_text",
    ("pad_id", "pad_token_id"): "hunyuan_vl_text",
    ("pad_index", "pad_token_id"): "flaubert xlm",
    ("qkv_bias", "attention_bias"): "internlm3 molmo2_text",
    ("rms_norm_eps", "norm_eps"): "lfm3",
    ("routed_scaling_factor", "route_scale"): "inkling2_loop_text inkling2_text",
    ("sconv_kernel_size", "conv_kernel_size"): "inkling2_loop_text inkling2_text inkling_text",
    ("share_expert_dims", "share_expert_dim"): "step3p5",
    ("sliding_window", "attention_window_size"): "recurrent_gemma",
    ("sliding_window", "sliding_window_size"): "inkling2_loop_text inkling2_text inkling_text",
    ("use_qkv_bias", "attention_bias"): "sarvam_moe",
    ("video_token_id", "image_patch_id"): "molmo2",
    ("video_token_id", "video_token_index"): (
        "instructblipvideo llava_next_video llava_onevision minimax_m3_vl "
        "qwen2_5_omni_thinker video_llava"
    ),
    ("vision_feature_layers", "vision_feature_layer"): "vipllava",
    ("vocab_size", "tgt_vocab_size"): "fsmt",
}
"""A name, and the config class's name for the same field of these types."""


OLDER_KINDS = {
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "mamba": "linear_attention",
    "qwen_sparse_attention": "indexed_attention",
}
"""Older names of kinds of layers, as transformers replaces them in the config of any type."""


def other_names() -> dict[str, Mapping[str, str]]:
    """Return, for each model type, other names of settings and the type's own for them."""
    found: dict[str, dict[str, str]] = {}
    for (other, own), kinds in _PAIRS.items():
        for kind in kinds.split():
            found.setdefault(kind, {})[other] = own
    return {**found}
