"""Gemma 3, SmolVLM and Idefics 3: SigLIP's patches, a square of them to a vector.

Source: Gemma3VisionModel and SmolVLMModel in https://github.com/ggml-org/llama.cpp/tree/master/conversion.
Imports no torch.
"""

from __future__ import annotations

from dovetail_plugins.gguf.projectors.projector import (
    Json,
    Pair,
    Projector,
    ProjectorNames,
    pictures,
    scale_factor,
    square,
    vision,
)

BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
SWAPPED = BLOCK | {"ffn_up": "mlp.fc2", "ffn_down": "mlp.fc1"}
USUAL_SCALE = 4
_TANH = "gelu_pytorch_tanh"
_GEMMA_TOKENS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")


def clip_names(pair: Pair, tower: str, whole: dict[str, str], **more: object) -> ProjectorNames:
    """Return the names of an encoder of CLIP's or SigLIP's layout, with those after it."""
    return ProjectorNames(
        block=SWAPPED if pair.is_swapped() else BLOCK,
        blocks=f"{tower}.encoder.layers",
        whole={
            "v.patch_embd": f"{tower}.embeddings.patch_embedding",
            "v.position_embd": f"{tower}.embeddings.position_embedding",
            "v.class_embd": f"{tower}.embeddings.class_embedding",
            "v.pre_ln": f"{tower}.pre_layrnorm",
            "v.post_ln": f"{tower}.post_layernorm",
            **whole,
        },
        **more,  # type: ignore[arg-type]
    )


def _gemma3_names(pair: Pair) -> ProjectorNames:
    projector = "model.multi_modal_projector"
    whole = {
        "mm.input_projection.weight": f"{projector}.mm_input_projection_weight",
        "mm.soft_emb_norm": f"{projector}.mm_soft_emb_norm",
    }
    changes = {"mm.soft_emb_norm": lambda tensor, pair: tensor.float() - 1}
    return clip_names(pair, "model.vision_tower", whole, changes=changes)


def _gemma3(pair: Pair) -> Json:
    first, soft, last = _GEMMA_TOKENS
    return {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "vision_config": vision(
            pair, "siglip_vision_model", hidden_act=_TANH, vision_use_head=False
        ),
        "mm_tokens_per_image": pair.side(scale_factor(pair, USUAL_SCALE)) ** 2,
        "image_token_index": pair.token(soft)[0],
        "boi_token_index": pair.required(first),
        "eoi_token_index": pair.required(last),
    }


def _gemma3_processor(pair: Pair) -> Json:
    first, soft, last = _GEMMA_TOKENS
    return {
        "processor_class": "Gemma3Processor",
        "image_processor": pictures(pair, "Gemma3ImageProcessor", size=square(pair), resample=2),
        "image_seq_length": pair.side(scale_factor(pair, USUAL_SCALE)) ** 2,
        "tokens": {"boi_token": first, "image_token": pair.token(soft)[1], "eoi_token": last},
    }


def _idefics3_names(pair: Pair) -> ProjectorNames:
    whole = {"mm.model.fc": "model.connector.modality_projection.proj"}
    return clip_names(pair, "model.vision_model", whole)


def _idefics3(pair: Pair) -> Json:
    return {
        "model_type": "idefics3",
        "architectures": ["Idefics3ForConditionalGeneration"],
        "vision_config": vision(pair, "idefics3_vision", hidden_act=_TANH),
        "scale_factor": scale_factor(pair),
        "image_token_id": pair.token("<image>")[0],
    }


def _idefics3_processor(pair: Pair) -> Json:
    size = pair.number("image_size")
    longest = pair.find("preproc_image_size", int) or USUAL_SCALE * size
    cut = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": size}}
    return {
        "processor_class": "Idefics3Processor",
        "image_processor": pictures(
            pair,
            "Idefics3ImageProcessor",
            resample=1,
            do_image_splitting=True,
            do_pad=True,
            **cut,
        ),
        "image_seq_len": pair.side(scale_factor(pair)) ** 2,
    }


PROJECTORS = {
    "gemma3": Projector(
        texts=("gemma3",),
        config=_gemma3,
        names=_gemma3_names,
        processor=_gemma3_processor,
        width=("mm.input_projection.weight", 1),
    ),
    "idefics3": Projector(
        texts=("llama",),
        config=_idefics3,
        names=_idefics3_names,
        processor=_idefics3_processor,
        width=("mm.model.fc.weight", 0),
    ),
}
"""clip.projector_type -> how such files are read."""
