"""The config.json and the names of T5, whole or its encoder alone, from a GGUF file's settings.

UMT5 is known by its biases in every layer. Names are those of the layers here. Imports no torch.
"""

from __future__ import annotations

from typing import Any

from dovetail_plugins.gguf.families.family import Family, FamilyNames
from dovetail_plugins.gguf.reading.metadata import Settings

_BIAS = "attn_rel_b.weight"
_ENCODER = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_o": "attention.o_proj",
    "attn_rel_b": "attention.relative_attention_bias",
    "ffn_norm": "output_norm",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
_DECODER = {
    "attn_norm": "self_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_o": "self_attn.o_proj",
    "attn_rel_b": "self_attn.relative_attention_bias",
    "cross_attn_norm": "cross_norm",
    "cross_attn_q": "cross_attn.query_proj",
    "cross_attn_k": "cross_attn.cross_k",
    "cross_attn_v": "cross_attn.cross_v",
    "cross_attn_o": "cross_attn.o_proj",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _side(block: dict[str, str], start: str) -> FamilyNames:
    trunk = {"output_norm": f"{start}final_norm"}
    return FamilyNames(block=block, blocks=f"{start}layers", trunk=trunk)


def _t5(settings: Settings) -> dict[str, Any]:
    return _config(settings, "ForConditionalGeneration")


def _encoder(settings: Settings) -> dict[str, Any]:
    return _config(settings, "EncoderModel")


def _config(settings: Settings, end: str) -> dict[str, Any]:
    """Return the settings. `end`: how the name of the class ends."""
    layers = settings.number(".block_count")
    kind = "umt5" if settings.tensor(f"enc.blk.{layers - 1}.{_BIAS}") and layers > 1 else "t5"
    inner = settings.number(".feed_forward_length")
    is_gated = settings.tensor("enc.blk.0.ffn_gate.weight") is not None
    start = settings.find(".decoder_start_token_id", int)
    return {
        "model_type": kind,
        "architectures": [kind.upper() + end],
        "d_model": settings.number(".embedding_length"),
        "d_ff": inner,
        "d_kv": settings.number(".attention.key_length"),
        "num_heads": settings.number(".attention.head_count"),
        "num_layers": layers,
        "num_decoder_layers": settings.find(".decoder_block_count", int) or layers,
        "intermediate_size": inner,
        "layer_norm_epsilon": settings.find(".attention.layer_norm_rms_epsilon", float) or 1e-6,
        "relative_attention_num_buckets": settings.number(".attention.relative_buckets_count"),
        "feed_forward_proj": "gated-gelu" if is_gated else "relu",
        "decoder_start_token_id": start or 0,
        "pad_token_id": settings.find("tokenizer.ggml.padding_token_id", int) or 0,
    }


def _no_mlp_rows(config: Any) -> dict[str, int | None]:
    return {}


_WORDS = {"token_embd": "words", "output": "lm_head"}
FAMILIES = {
    "t5": Family(
        config=_t5,
        names=FamilyNames(
            block={},
            trunk=_WORDS,
            sides={"enc": _side(_ENCODER, "encoder."), "dec": _side(_DECODER, "decoder.")},
        ),
        rows=_no_mlp_rows,
    ),
    "t5encoder": Family(
        config=_encoder,
        names=FamilyNames(
            block={}, trunk={"token_embd": "embeddings.words"}, sides={"enc": _side(_ENCODER, "")}
        ),
        rows=_no_mlp_rows,
    ),
}
"""general.architecture -> how files of it are read."""
