"""The config.json and the names of encoders: every token attends to all others of its text.

Names are those of the encoder layers here (`layers.encoder`). Source: tensor_mapping.py of the gguf
package, and conversion/bert.py of llama.cpp. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.families.dense import FAMILIES as DECODERS
from dovetail_plugins.gguf.families.family import STATES, Family, FamilyNames, usual_rows
from dovetail_plugins.gguf.families.parts import kinds, layer_norm_eps
from dovetail_plugins.gguf.families.pooled import DENSE, tells_classes
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.reading.metadata import Settings

if TYPE_CHECKING:
    import torch

_CLASSES = "ForSequenceClassification"
_TRUNK = {
    "token_embd": "embeddings.words",
    "position_embd": "embeddings.positions",
    "token_types": "embeddings.types",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
    **{one: one for one in DENSE},
}
_TWO_LAYERS = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}
_DISTILLED = {"cls": "pre_classifier", "cls.output": "classifier"}
_ONE_LAYER = dict.fromkeys(_TWO_LAYERS, "classifier")
_BLOCK = {
    "attn_qkv": "attention.qkv_proj",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_output": "attention.o_proj",
    "attn_output_norm": "attention_norm",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
    "layer_output_norm": "output_norm",
}
_GATED = {**_BLOCK, "ffn_gate": "gate_proj"}
_MIXED = {
    **_BLOCK,
    "ffn_gate_inp": "mixture.gate",
    "ffn_up_exps": "mixture.experts.up_proj",
    "ffn_down_exps": "mixture.experts.down_proj",
}
_MODERN = {
    "attn_qkv": "attention.qkv_proj",
    "attn_output": "attention.o_proj",
    "attn_norm": "attention_norm",
    "ffn_norm": "output_norm",
    "ffn_up": "gate_up_proj",
    "ffn_down": "down_proj",
}
_MODERN_HEAD = {"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"}


def _rows_of(model: GgufModel, tensor: torch.Tensor) -> torch.Tensor:
    """Return a matrix whose one row converters of 2024 stored without its axis."""
    sizes = {one.name: one.shape for one in model.extents}
    width = sizes["token_embd.weight"][-1]
    is_row = tensor.dim() == 1 and tensor.numel() == width
    return tensor.unsqueeze(0) if is_row else tensor


_UNDO = {**STATES, "token_types": _rows_of, "cls.output": _rows_of}


def _names(block: Mapping[str, str], head: Mapping[str, str]) -> FamilyNames:
    return FamilyNames(block=block, trunk={**_TRUNK, **head}, blocks="layers", undo=_UNDO)


def _encoder(settings: Settings, model_type: str, name: str, **more: Any) -> dict[str, Any]:
    """Return the settings of all encoders. `name`: how the names of its classes begin."""
    table = settings.tensor("position_embd.weight")
    positions = {} if table is None else {"max_position_embeddings": table.shape[0]}
    return {
        "model_type": model_type,
        "architectures": [name + (_CLASSES if tells_classes(settings) else "Model")],
        "intermediate_size": settings.number(".feed_forward_length"),
        "type_vocab_size": _num_types(settings),
        "layer_norm_eps": settings.find(".attention.layer_norm_epsilon", float) or 1e-12,
        "pad_token_id": settings.find("tokenizer.ggml.padding_token_id", int),
        **positions,
        **more,
    }


def _num_types(settings: Settings) -> int:
    """Return the texts of a prompt that the model distinguishes, 0 for none."""
    table = settings.tensor("token_types.weight")
    if table is None:
        return 0
    return table.shape[0] if len(table.shape) > 1 else 1


def _has_two_layers(model: GgufModel) -> bool:
    """Return whether a layer precedes the matrix of the classes."""
    return {"cls.weight", "cls.output.weight"} <= {one.name for one in model.extents}


def _has_types(model: GgufModel) -> bool:
    return any(one.name == "token_types.weight" for one in model.extents)


def _bert(settings: Settings) -> dict[str, Any]:
    """BERT, RoBERTa (the unused rows of its positions are left out) and DistilBERT, which alone has
    no types."""
    name = "Bert"
    if not _has_types(settings.model):
        name = "DistilBert"
    elif _has_two_layers(settings.model):
        name = "Roberta"
    one = tells_classes(settings) and not _has_two_layers(settings.model)
    return _encoder(settings, "bert", name, has_no_pooler=one)


def _bert_names(model: GgufModel) -> FamilyNames | None:
    """Return the names of files whose classes are told otherwise than by RoBERTa's two layers."""
    if not _has_two_layers(model):
        return _names(_BLOCK, _ONE_LAYER)
    return None if _has_types(model) else _names(_BLOCK, _DISTILLED)


def _nomic(settings: Settings) -> dict[str, Any]:
    return _encoder(
        settings,
        "nomic_bert",
        "NomicBert",
        hidden_act="silu",
        rope_theta=settings.find(".rope.freq_base", float) or 1000.0,
        qkv_proj_bias=settings.has("attn_qkv.bias"),
        mlp_fc1_bias=settings.has("ffn_up.bias"),
        mlp_fc2_bias=settings.has("ffn_down.bias"),
    )


def _nomic_moe(settings: Settings) -> dict[str, Any]:
    """Plain inner layers, and experts without the bias after them, which GGUF has no name for."""
    return _nomic(settings) | {
        "hidden_act": "gelu",
        "num_experts": settings.number(".expert_count"),
        "moe_top_k": settings.number(".expert_used_count"),
        "moe_every_n_layers": settings.number(".moe_every_n_layers"),
        "has_expert_bias": False,
    }


def _jina_v2(settings: Settings) -> dict[str, Any]:
    if settings.has("attn_q_norm.weight") or settings.has("attn_norm_2.weight"):
        raise ConfigError(
            "this jina-bert-v2 file norms its queries and keys, as the model for code does; the "
            "models for text alone are read.",
            where=str(settings.model.path),
            fix="use another embedding model for code.",
        )
    is_gated = settings.has("ffn_gate.weight") or _is_joined(settings.model)
    return _encoder(
        settings,
        "bert",
        "JinaBert",
        position_embedding_type="alibi",
        feed_forward_type="geglu" if is_gated else "original",
        has_no_pooler=tells_classes(settings) and not _has_two_layers(settings.model),
    )


def _is_joined(model: GgufModel) -> bool:
    """Return whether a file's gates and inner layers are one matrix."""
    inner = model.settings.get(f"{model.settings['general.architecture']}.feed_forward_length")
    up = next((one for one in model.extents if one.name.endswith(".ffn_up.weight")), None)
    return up is not None and isinstance(inner, int) and up.shape[0] == 2 * inner


def _jina_v2_names(model: GgufModel) -> FamilyNames | None:
    block = {**_GATED, "ffn_up": "gate_up_proj"} if _is_joined(model) else _GATED
    return _names(block, _TWO_LAYERS if _has_two_layers(model) else _ONE_LAYER)


def _jina_v3(settings: Settings) -> dict[str, Any]:
    theta = settings.find(".rope.freq_base", float) or 20000.0
    return _encoder(settings, "jina_embeddings_v3", "JinaEmbeddingsV3", rope_theta=theta)


def _modern(settings: Settings) -> dict[str, Any]:
    return {
        **_encoder(settings, "modernbert", "ModernBert"),
        "hidden_activation": settings.find(".hidden_act", str) or "gelu",
        "norm_eps": layer_norm_eps(settings),
        "norm_bias": settings.tensor("output_norm.bias") is not None,
        "attention_bias": settings.has("attn_qkv.bias"),
        "mlp_bias": settings.has("ffn_up.bias"),
        "local_attention": settings.find(".attention.sliding_window", int) or 128,
        "layer_types": _modern_kinds(settings),
        "global_rope_theta": settings.find(".rope.freq_base", float) or 160000.0,
        "local_rope_theta": settings.find(".rope.freq_base_swa", float) or 10000.0,
        "classifier_pooling": "mean",  # as llama.cpp does: no file says
        "classifier_bias": settings.tensor("cls.bias") is not None,
        "classifier_activation": "gelu",
    }


def _modern_kinds(settings: Settings) -> list[str]:
    """Return each layer's kind: the first of every N sees the whole text."""
    pattern = settings.find(".attention.sliding_window_pattern", (int, list))
    if isinstance(pattern, list):
        return list(kinds(settings, every=1)["layer_types"])
    every = pattern or 3
    count = settings.number(".block_count")
    return ["sliding_attention" if i % every else "full_attention" for i in range(count)]


def _gemma(settings: Settings) -> dict[str, Any]:
    more = {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}
    return DECODERS["gemma3"].config(settings) | more


def _bidirectional(settings: Settings) -> dict[str, Any]:
    """Llama without a mask: its tokens attend to all others."""
    return DECODERS["llama"].config(settings) | {"architectures": ["LlamaModel"]}


def _no_mask(settings: Settings) -> dict[str, Any]:
    return _bidirectional(settings) | {"is_causal": False}


def _rows_without_mlp(config: Mapping[str, Any]) -> dict[str, int | None]:
    return {**usual_rows(config), "ffn_up.weight": None}


def _with_dense(names: FamilyNames) -> FamilyNames:
    return replace(names, trunk={**names.trunk, **{one: one for one in DENSE}})


FAMILIES = {
    "bert": Family(config=_bert, names=_names(_BLOCK, _TWO_LAYERS), other_names=_bert_names),
    "nomic-bert": Family(config=_nomic, names=_names(_GATED, _ONE_LAYER)),
    "nomic-bert-moe": Family(config=_nomic_moe, names=_names(_MIXED, _ONE_LAYER)),
    "jina-bert-v2": Family(
        config=_jina_v2,
        names=_names(_GATED, _ONE_LAYER),
        other_names=_jina_v2_names,
        rows=_rows_without_mlp,
    ),
    "jina-bert-v3": Family(config=_jina_v3, names=_names(_BLOCK, _TWO_LAYERS)),
    "modern-bert": Family(
        config=_modern, names=_names(_MODERN, _MODERN_HEAD), rows=_rows_without_mlp
    ),
    "gemma-embedding": Family(config=_gemma, names=_with_dense(DECODERS["gemma3"].names)),
    "llama-embed": Family(config=_no_mask, names=DECODERS["llama"].names),
    "eurobert": Family(config=_no_mask, names=replace(DECODERS["llama"].names, turns_heads=False)),
}
"""general.architecture -> how files of it are read."""
