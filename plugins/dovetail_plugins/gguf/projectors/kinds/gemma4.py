"""Gemma 4: images of any shape, nine patches to a vector, and sounds through a conformer.

A file has the encoder of images, or both. The matrices of some have limits for what they take and
return. Source: Gemma4VisionAudioModel in
https://github.com/ggml-org/llama.cpp/blob/master/conversion/gemma.py. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    as_rows,
    pictures,
)

if TYPE_CHECKING:
    import torch

_SEES, _HEARS = "model.vision_tower", "model.audio_tower"
_LIMITS = ("input_min", "input_max", "output_min", "output_max")
_IMAGE = ("<|image|>", "<|image>", "<image|>")
_AUDIO = ("<|audio|>", "<|audio>", "<audio|>")
"""The tokens for a place, before places and after them."""
_VIDEO = "<|video|>"
_PADDING = "tokenizer.ggml.padding_token_id"
_SIDE = 3
"""Patches along the side of a square that becomes a vector."""
_EPS = 1e-6
"""Of the norms of sounds: files state another number, which no model uses."""


def _limited(matrices: Mapping[str, str]) -> dict[str, str]:
    """Return the names of matrices and of their limits."""
    weights = {f"{old}.weight": f"{new}.linear.weight" for old, new in matrices.items()}
    limits = {f"{old}.{word}": f"{new}.{word}" for old, new in matrices.items() for word in _LIMITS}
    return weights | limits


_SEEING = {
    **{f"attn_{one}": f"self_attn.{one}_proj" for one in ("q", "k", "v")},
    "attn_out": "self_attn.o_proj",
    **{f"ffn_{one}": f"mlp.{one}_proj" for one in ("gate", "up", "down")},
}
_SEEING_NORMS = {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ln1": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
_HEARING = {
    **{f"attn_{one}": f"self_attn.{one}_proj" for one in ("q", "k", "v")},
    "attn_out": "self_attn.post",
    "ffn_up": "feed_forward1.ffw_layer_1",
    "ffn_down": "feed_forward1.ffw_layer_2",
    "ffn_up_1": "feed_forward2.ffw_layer_1",
    "ffn_down_1": "feed_forward2.ffw_layer_2",
    "conv_pw1": "lconv1d.linear_start",
    "conv_pw2": "lconv1d.linear_end",
}
_HEARING_OTHERS = {
    "attn_k_rel": "self_attn.relative_k_proj",
    "per_dim_scale.weight": "self_attn.per_dim_scale",
    "attn_pre_norm": "norm_pre_attn",
    "attn_post_norm": "norm_post_attn",
    "ln2": "norm_out",
    "ffn_norm": "feed_forward1.pre_layer_norm",
    "ffn_post_norm": "feed_forward1.post_layer_norm",
    "ffn_norm_1": "feed_forward2.pre_layer_norm",
    "ffn_post_norm_1": "feed_forward2.post_layer_norm",
    "conv_dw": "lconv1d.depthwise_conv1d",
    "conv_norm": "lconv1d.pre_layer_norm",
    "norm_conv": "lconv1d.conv_norm",
}


def _scalar(tensor: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Return a number that is stored as a vector."""
    return tensor.reshape(())


def _of_channels(tensor: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Return kernels of single channels with an axis for those: [C, K] -> [C, 1, K]."""
    return tensor.unsqueeze(1)


def _before_softplus(tensor: torch.Tensor, pair: Pair) -> torch.Tensor:
    """Return the numbers x of log(1 + exp(x))."""
    values = tensor.float()
    return values + (-(-values).expm1()).log()


def _seeing_names(pair: Pair) -> ProjectorNames:
    block = _limited(_SEEING)
    return ProjectorNames(
        block=block | _SEEING_NORMS,
        blocks=f"{_SEES}.encoder.layers",
        whole={
            "v.patch_embd": f"{_SEES}.patch_embedder.input_proj",
            "v.position_embd.weight": f"{_SEES}.patch_embedder.position_embedding_table",
            "v.std_bias": f"{_SEES}.std_bias",
            "v.std_scale": f"{_SEES}.std_scale",
            "mm.input_projection": "model.embed_vision.embedding_projection",
        },
        changes={"v.patch_embd": as_rows, **dict.fromkeys(_limits_of(block), _scalar)},
    )


def _hearing_names(pair: Pair) -> ProjectorNames:
    before, block = f"{_HEARS}.subsample_conv_projection", _limited(_HEARING)
    return ProjectorNames(
        block=block | _HEARING_OTHERS,
        blocks=f"{_HEARS}.layers",
        whole={
            **{f"a.conv1d.{n}": f"{before}.layer{n}.conv" for n in (0, 1)},
            **{f"a.conv1d.{n}.norm": f"{before}.layer{n}.norm" for n in (0, 1)},
            "a.input_projection": f"{before}.input_proj_linear",
            "a.pre_encode.out": f"{_HEARS}.output_proj",
            "mm.a.input_projection": "model.embed_audio.embedding_projection",
        },
        changes={
            "per_dim_scale": _before_softplus,
            "conv_dw": _of_channels,
            **dict.fromkeys(_limits_of(block), _scalar),
        },
    )


def _limits_of(block: Mapping[str, str]) -> list[str]:
    return [name for name in block if name.endswith(_LIMITS)]


def _named(pair: Pair) -> Json:
    """Return the class of both files, and the ids of its tokens."""
    place, first, last = _IMAGE
    return {
        "model_type": "gemma4",
        "architectures": ["Gemma4ForConditionalGeneration"],
        "image_token_id": pair.token(place)[0],
        "boi_token_id": pair.required(first),
        "eoi_token_id": pair.required(last),
        "video_token_id": pair.token_id(_VIDEO),
    }


def _seeing(pair: Pair) -> Json:
    heads = pair.number("attention.head_count")
    size = pair.matrix("v.blk.0.attn_q.weight")[0] // heads
    encoder = {
        "model_type": "gemma4_vision",
        "hidden_size": pair.number("embedding_length"),
        "intermediate_size": pair.matrix("v.blk.0.ffn_up.weight")[0],
        "num_hidden_layers": pair.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": pair.matrix("v.blk.0.attn_k.weight")[0] // size,
        "head_dim": size,
        "patch_size": pair.number("patch_size"),
        "position_embedding_size": pair.shape("v.position_embd.weight")[1],
        "pooling_kernel_size": _SIDE,
        "rms_norm_eps": pair.small("attention.layer_norm_epsilon", _EPS),
        "use_clipped_linears": pair.has(f"v.blk.0.attn_q.{_LIMITS[0]}"),
        "standardize": pair.has("v.std_bias"),
    }
    return {**_named(pair), "vision_config": encoder}


def _hearing(pair: Pair) -> Json:
    place, first, last = _AUDIO
    encoder = {
        "model_type": "gemma4_audio",
        "hidden_size": pair.number("embedding_length", "a"),
        "num_hidden_layers": pair.number("block_count", "a"),
        "num_attention_heads": pair.number("attention.head_count", "a"),
        "subsampling_conv_channels": [pair.shape(f"a.conv1d.{n}.weight")[0] for n in (0, 1)],
        "conv_kernel_size": pair.matrix("a.blk.0.conv_dw.weight")[1],
        "output_proj_dims": pair.matrix("a.pre_encode.out.weight")[0],
        "use_clipped_linears": pair.has(f"a.blk.0.attn_q.{_LIMITS[0]}"),
        "rms_norm_eps": _EPS,
    }
    return {
        **_named(pair),
        "audio_config": encoder,
        "audio_token_id": pair.token(place)[0],
        "boa_token_id": pair.required(first),
        "eoa_token_index": pair.required(last),
    }


def _text(pair: Pair) -> Json:
    """Return the text model's part: without inputs of layers, images are seen both ways."""
    both_ways = None if pair.config.get("hidden_size_per_layer_input") else "vision"
    padding = pair.text.find(_PADDING, int) or 0
    return {**pair.config, "pad_token_id": padding, "use_bidirectional_attention": both_ways}


def _processor(pair: Pair, bins: int = 128) -> Json:
    names = [f"{kind}_token" for kind in ("image", "boi", "eoi", "audio", "boa", "eoa")]
    texts = (pair.token(_IMAGE[0])[1], *_IMAGE[1:], pair.token(_AUDIO[0])[1], *_AUDIO[1:])
    images = pictures(
        pair,
        "Gemma4ImageProcessor",
        do_normalize=False,
        resample=3,
        patch_size=pair.number("patch_size"),
        pooling_kernel_size=_SIDE,
    )
    return {
        "processor_class": "Gemma4Processor",
        "image_processor": images,
        "feature_extractor": {
            "feature_extractor_type": "Gemma4AudioFeatureExtractor",
            "feature_size": bins,
        },
        "tokens": dict(zip(names, texts, strict=True)),
    }


PROJECTORS = {
    "gemma4v": Projector(
        texts=("gemma4",),
        config=_seeing,
        names=_seeing_names,
        processor=_processor,
        text=_text,
        width=("mm.input_projection.weight", 0),
        family="gemma4",
    ),
    "gemma4a": Projector(
        texts=("gemma4",),
        config=_hearing,
        names=_hearing_names,
        processor=lambda pair: _processor(pair, pair.number("num_mel_bins", "a")),
        text=_text,
        width=("mm.a.input_projection.weight", 0),
        part="audio",
        family="gemma4",
    ),
}
"""clip.projector_type -> how such files are read."""
