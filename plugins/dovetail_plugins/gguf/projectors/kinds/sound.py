"""Qwen2-Audio, Voxtral, Audio Flamingo 3 and GLM-ASR: Whisper's encoder of sound.

Source: WhisperEncoderModel and GlmASRWhisperEncoderModel in
https://github.com/ggml-org/llama.cpp/blob/master/conversion/ultravox.py; how GLM-ASR's heads are
turned: convert_glmasr_weights_to_hf.py of https://github.com/huggingface/transformers. Imports no
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail_plugins.gguf.projectors.projector import Json, Pair, Projector, ProjectorNames, flat

if TYPE_CHECKING:
    import torch

_TOWER, _PROJECTOR = "model.audio_tower", "model.multi_modal_projector"
_BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "self_attn_layer_norm",
    "ln2": "final_layer_norm",
    "ffn_up": "fc1",
    "ffn_down": "fc2",
}
_GLM_BLOCK = {
    **{f"attn_{one}": f"self_attn.{one}_proj" for one in ("q", "k", "v")},
    "attn_out": "self_attn.o_proj",
    "ln1": "input_layernorm",
    "ln2": "post_attention_layernorm",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_USUAL = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
HOP, RATE_HZ, STEP = 160, 16000, 2
"""Samples between two spectra; samples a second; spectra for each position of the encoder."""


def _names(projector: dict[str, str]) -> ProjectorNames:
    convolutions = ("a.conv1d.1", "a.conv1d.2")
    return ProjectorNames(
        block=_BLOCK,
        blocks=f"{_TOWER}.layers",
        whole={
            "a.position_embd": f"{_TOWER}.embed_positions",
            "a.post_ln": f"{_TOWER}.layer_norm",
            **{name: f"{_TOWER}.conv{name[-1]}" for name in convolutions},
            **{old: f"{_PROJECTOR}.{new}" for old, new in projector.items()},
        },
        changes={f"{name}.bias": flat for name in convolutions},
    )


def _glm_names(pair: Pair) -> ProjectorNames:
    convolutions = ("a.conv1d.1", "a.conv1d.2")
    return ProjectorNames(
        block=_GLM_BLOCK,
        blocks=f"{_TOWER}.layers",
        whole={
            **{name: f"{_TOWER}.conv{name[-1]}" for name in convolutions},
            "mm.a.norm_pre": f"{_TOWER}.norm",
            **{f"mm.a.mlp.{n}": f"{_PROJECTOR}.linear_{n}" for n in (1, 2)},
        },
        changes={
            **dict.fromkeys([f"{name}.bias" for name in convolutions], flat),
            **dict.fromkeys(("attn_q", "attn_k"), _halves),
        },
        left_out=("a.position_embd.weight", "v.boi", "v.eoi"),
    )


def _halves(rows: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Return rows whose pairs (2 i, 2 i + 1) in the first half of every head become (i, i + a
    quarter of the head)."""
    heads = rows.unflatten(0, (pair.number("attention.head_count", "a"), 2, -1)).clone()
    heads[:, 0] = heads[:, 0].unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
    return heads.flatten(0, 2)


def _sizes(pair: Pair) -> tuple[int, int, int, int, int]:
    """Return the encoder's width, inner width, blocks, heads and positions."""
    counts = (pair.number(f"{word}", "a") for word in ("block_count", "attention.head_count"))
    positions = pair.matrix("a.position_embd.weight")[0]
    return (pair.number("embedding_length", "a"), pair.inner("a"), *counts, positions)  # type: ignore[return-value]


def _encoder(
    pair: Pair,
    model_type: str,
    names: tuple[str, str, str, str] = _USUAL,
    positions: str = "max_source_positions",
) -> Json:
    """Return the encoder's settings. `names`: of the width, the inner width, the blocks and the
    heads; `positions`: of the positions."""
    keys = (*names, positions)
    sizes = dict(zip(keys, _sizes(pair), strict=True))
    return {"model_type": model_type, **sizes, "num_mel_bins": pair.number("num_mel_bins", "a")}


def _qwen2a(pair: Pair) -> Json:
    names = ("d_model", "encoder_ffn_dim", "encoder_layers", "encoder_attention_heads")
    return {
        "model_type": "qwen2_audio",
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "audio_config": _encoder(pair, "qwen2_audio_encoder", names),
        "audio_token_index": pair.token("<|AUDIO|>")[0],
    }


def _voxtral(pair: Pair) -> Json:
    return {
        "model_type": "voxtral",
        "architectures": ["VoxtralForConditionalGeneration"],
        "audio_config": _encoder(pair, "voxtral_encoder"),
        "audio_token_id": pair.token("[AUDIO]")[0],
    }


def _flamingo(pair: Pair) -> Json:
    return {
        "model_type": "audioflamingo3",
        "architectures": ["AudioFlamingo3ForConditionalGeneration"],
        "audio_config": _encoder(pair, "audioflamingo3_encoder"),
        "audio_token_id": pair.token("<sound>")[0],
        "projector_hidden_act": "gelu",
        "projector_bias": pair.has("mm.a.mlp.1.bias"),
    }


def _glm(pair: Pair) -> Json:
    encoder = _encoder(pair, "glmasr_encoder", positions="max_position_embeddings")
    taken, inner = pair.matrix("mm.a.mlp.1.weight")[1], encoder["intermediate_size"]
    if taken != inner:  # transformers joins as many frames as make the inner size
        raise pair.fault(f"its projection takes {taken} numbers, where a block has {inner} inside.")
    return {
        "model_type": "glmasr",
        "architectures": ["GlmAsrForConditionalGeneration"],
        "audio_config": encoder,
        "audio_token_id": pair.token("<|pad|>")[0],
        "projector_hidden_act": "gelu",
    }


def _spectra(pair: Pair) -> Json:
    """Return the settings of Whisper's spectra, of sounds as long as the encoder has positions."""
    samples = pair.matrix("a.position_embd.weight")[0] * STEP * HOP
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": pair.number("num_mel_bins", "a"),
        "chunk_length": samples // RATE_HZ,
        "hop_length": HOP,
        "n_fft": 400,
        "sampling_rate": RATE_HZ,
    }


def _qwen2a_processor(pair: Pair) -> Json:
    return {
        "processor_class": "Qwen2AudioProcessor",
        "feature_extractor": _spectra(pair),
        "audio_token": pair.token("<|AUDIO|>")[1],
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    }


def _voxtral_processor(pair: Pair) -> Json:
    return {"processor_class": "VoxtralProcessor", "feature_extractor": _spectra(pair)}


def _windowed(pair: Pair, name: str, token: str) -> Json:
    return {
        "processor_class": name,
        "feature_extractor": _spectra(pair),
        "audio_token": pair.token(token)[1],
    }


PROJECTORS = {
    "musicflamingo": Projector(
        texts=("qwen2",),
        config=_flamingo,
        names=lambda pair: _names({"mm.a.mlp.1": "linear_1", "mm.a.mlp.2": "linear_2"}),
        processor=lambda pair: _windowed(pair, "AudioFlamingo3Processor", "<sound>"),
        width=("mm.a.mlp.2.weight", 0),
        part="audio",
        is_backed=True,
    ),
    "glma": Projector(
        texts=("llama",),
        config=_glm,
        names=_glm_names,
        processor=lambda pair: _windowed(pair, "GlmAsrProcessor", "<|pad|>"),
        width=("mm.a.mlp.2.weight", 0),
        part="audio",
        is_backed=True,
    ),
    "qwen2a": Projector(
        texts=("qwen2",),
        config=_qwen2a,
        names=lambda pair: _names({"mm.a.fc": "linear"}),
        processor=_qwen2a_processor,
        width=("mm.a.fc.weight", 0),
        part="audio",
    ),
    "voxtral": Projector(
        texts=("llama", "mistral3"),
        config=_voxtral,
        names=lambda pair: _names({"mm.a.mlp.1": "linear_1", "mm.a.mlp.2": "linear_2"}),
        processor=_voxtral_processor,
        width=("mm.a.mlp.2.weight", 0),
        part="audio",
    ),
}
"""clip.projector_type -> how such files are read."""
