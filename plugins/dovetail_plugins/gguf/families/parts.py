"""The parts of a config.json that families share, from a GGUF file's settings. Imports no torch."""

from __future__ import annotations

from typing import Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.blocks.types import FLOAT_DTYPES
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.reading.metadata import Settings
from dovetail_plugins.gguf.reading.names import has_head

ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"}
)
"""Control tokens that end an answer whatever the settings say."""
HARMONY_ENDS = frozenset({"<|return|>", "<|call|>", "<|endoftext|>"})
"""The same of a vocabulary with the first two, in which <|end|> ends one message of several."""
_CONTROL = 3
_KINDS = {True: "sliding_attention", False: "full_attention"}


def sizes(settings: Settings) -> dict[str, Any]:
    """Return the settings that all families have, whether they attend or not."""
    return {
        "vocab_size": matrix_rows(settings, "token_embd.weight"),
        "hidden_size": settings.number(".embedding_length"),
        "num_hidden_layers": num_layers(settings),
        "max_position_embeddings": settings.number(".context_length"),
        "dtype": _dtype(settings.model),
        "tie_word_embeddings": not has_head(settings.model.extents),
    }


def num_layers(settings: Settings) -> int:
    """Return the number of layers: blocks that draft further tokens come after them.

    Raises: ConfigError when all blocks draft, as in files of a drafter alone."""
    count = settings.number(".block_count") - num_drafting(settings)
    if count <= 0:
        raise ConfigError(
            f"all {settings.number('.block_count')} blocks draft further tokens: this is a "
            "drafter, not a model.",
            where=str(settings.model.path),
            fix="serve the file of the model.",
        )
    return count


def num_drafting(settings: Settings) -> int:
    """Return the number of blocks that draft further tokens."""
    return settings.find(".nextn_predict_layers", int) or 0


def common(settings: Settings) -> dict[str, Any]:
    """Return the settings that all families with attention have."""
    heads = _positive(settings, ".attention.head_count", settings.largest(".attention.head_count"))
    hidden = settings.number(".embedding_length")
    size = settings.find(".attention.key_length", int) or hidden // heads
    given = settings.find(".attention.head_count_kv", (int, list))
    return {
        **sizes(settings),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if given is None
        else settings.largest(".attention.head_count_kv"),
        "head_dim": _positive(settings, ".attention.key_length", size),
    }  # fmt: skip


def _positive(settings: Settings, name: str, count: int) -> int:
    """Return a count of heads or of their numbers. Raises: ConfigError if it is none"""
    if count <= 0:
        raise ConfigError(
            f"{settings.architecture}{name} means {count}; a model that attends has at least 1.",
            where=str(settings.model.path),
            fix="download the file again.",
        )
    return count


def matrix_rows(settings: Settings, name: str) -> int:
    """Return the rows of a matrix, the token table for one. Raises: ConfigError"""
    table = settings.tensor(name)
    if table is None or len(table.shape) != 2:
        raise ConfigError(
            f"the tensor {name} is missing or not a matrix.", where=str(settings.model.path)
        )
    return table.shape[0]


def _dtype(model: GgufModel) -> str:
    """Return the type of unquantized data, the KV cache too: the one most matrices are stored in.
    If all are quantized it is float16, which changes fewer results than bfloat16 (0.5B Qwen,
    Q4_K_M: 22 of 2,044 likeliest tokens differ, 33 in bfloat16).
    """
    names = [one.type.name for one in model.extents if len(one.shape) > 1]
    halves = [name for name in names if name in FLOAT_DTYPES and name != "F32"]
    if halves:
        return FLOAT_DTYPES[max(halves, key=halves.count)]
    return "float32" if set(names) <= {"F32"} else "float16"


def ends(settings: Settings) -> dict[str, Any]:
    """Return the first token and all that end an answer."""
    ends = [settings.find(f"tokenizer.ggml.{name}", int) for name in ENDS]
    texts = settings.find("tokenizer.ggml.tokens", list) or []
    kinds = settings.find("tokenizer.ggml.token_type", list) or []
    control = [
        (token_id, text)
        for token_id, (text, kind) in enumerate(zip(texts, kinds, strict=False))
        if kind == _CONTROL and text in END_TEXTS | HARMONY_ENDS
    ]
    is_harmony = {"<|return|>", "<|call|>"} <= {text for _, text in control}
    ending = HARMONY_ENDS if is_harmony else END_TEXTS
    known = [token_id for token_id, text in control if text in ending]
    ids = dict.fromkeys(one for one in (*ends, *known) if one is not None)
    first = settings.find("tokenizer.ggml.bos_token_id", int)
    return {"bos_token_id": first, "eos_token_id": list(ids)}


def rope(settings: Settings) -> dict[str, Any]:
    """Return the rotary settings, in config.json's words."""
    theta = settings.find(".rope.freq_base", float) or 10000.0
    size = settings.find(".rope.dimension_count", int)
    head = common(settings)["head_dim"]
    share = {} if size in (None, head) else {"partial_rotary_factor": size / head}
    return {"rope_theta": theta, "rope_scaling": _scaling(settings)} | share


def with_sections(settings: Settings, *, is_interleaved: bool) -> dict[str, Any]:
    """Return the scaling of the rotary embedding with its sections, for positions in time, height
    and width. `is_interleaved`: the sections take turns. Raises: ConfigError for other sections"""
    scaling = _scaling(settings) or {"rope_type": "default"}
    sections = settings.find(".rope.dimension_sections", list)
    if sections is None:
        return scaling
    pairs = (settings.find(".rope.dimension_count", int) or common(settings)["head_dim"]) // 2
    if len(sections) < 3 or sum(sections[:3]) != pairs or any(sections[3:]):
        raise ConfigError(
            f"{settings.architecture}.rope.dimension_sections is {sections}: three sections of "
            f"{pairs} pairs are read.",
            where=str(settings.model.path),
            fix="convert the model again with a current llama.cpp.",
        )
    named = {"mrope_section": sections[:3]}
    return scaling | named | ({"mrope_interleaved": True} if is_interleaved else {})


def only(settings: Settings, name: str, known: tuple[Any, ...]) -> None:
    """Raises: ConfigError if a setting has a value that no published model of the family has."""
    value = settings.find(name, (bool, int, float, str))
    if value not in known:
        raise ConfigError(
            f"{settings.architecture}{name} is {value!r}, which is not read for this family.",
            where=str(settings.model.path),
            fix="use the checkpoint that the file was made of.",
        )


def _scaling(settings: Settings) -> dict[str, Any] | None:
    """Return the scaling of the rotary embedding, None if there is none."""
    trained = settings.find(".rope.scaling.original_context_length", int)
    factor = settings.find(".rope.scaling.factor", float)
    attention = settings.find(".rope.scaling.attn_factor", float)
    long, short = (settings.factors(f"rope_factors_{word}.weight") for word in ("long", "short"))
    each = settings.factors("rope_freqs.weight")
    length = settings.number(".context_length")
    if each is not None:
        # Precomputed divisors of every pair: how Llama 3 is stretched.
        return {"rope_type": "longrope", "long_factor": each, "short_factor": each,
                "attention_factor": 1.0, "original_max_position_embeddings": length}  # fmt: skip
    if long is not None and short is not None:
        trained = trained or length
        scaling = {"rope_type": "longrope", "long_factor": long, "short_factor": short,
                 "factor": max(1.0, length / trained)}  # fmt: skip
        scaling["original_max_position_embeddings"] = trained
        return scaling | ({} if attention is None else {"attention_factor": attention})
    kind = settings.find(".rope.scaling.type", str)
    if kind == "linear" or (kind is None and settings.find(".rope.scale_linear", float)):
        factor = factor or settings.find(".rope.scale_linear", float)
        return {"rope_type": "linear", "factor": factor} if factor else None
    if kind == "yarn" and factor:
        scaling = {"rope_type": "yarn", "factor": factor, **_yarn(settings)}
        return scaling | ({} if trained is None else {"original_max_position_embeddings": trained})
    if kind not in (None, "none", "yarn", "longrope"):
        raise ConfigError(
            f'the rope scaling "{kind}" is not supported.', where=str(settings.model.path)
        )
    return None


def _yarn(settings: Settings) -> dict[str, float]:
    """Return a file's settings of YaRN's ramp."""
    named = {word: settings.find(f".rope.scaling.yarn_{word}", float)
             for word in ("beta_fast", "beta_slow")}  # fmt: skip
    return {word: value for word, value in named.items() if value is not None}


def gated(settings: Settings, model_type: str, name: str, **more: Any) -> dict[str, Any]:
    """Return the settings of families with rotary attention and a gated MLP."""
    inner = settings.find(".feed_forward_length", (int, list))
    has_inner = inner not in (None, 0)
    return {
        "model_type": model_type,
        "architectures": [name],
        "intermediate_size": settings.number(".feed_forward_length") if has_inner else None,
        "rms_norm_eps": settings.find(".attention.layer_norm_rms_epsilon", float) or 1e-6,
        "sliding_window": None,
        **rope(settings),
        **more,
    }


def kinds(settings: Settings, every: int) -> dict[str, Any]:
    """Return each layer's kind: all slide except every N-th, unless the file says otherwise."""
    pattern = settings.find(".attention.sliding_window_pattern", (int, list))
    count = num_layers(settings)
    slides = (
        pattern
        if isinstance(pattern, list)
        else [(i + 1) % (pattern or every) for i in range(count)]
    )
    return {"layer_types": [_KINDS[bool(one)] for one in slides[:count]]}


def layer_norm_eps(settings: Settings) -> float:
    """Return the epsilon of layer norms."""
    return settings.find(".attention.layer_norm_epsilon", float) or 1e-5


def granite_scales(settings: Settings) -> dict[str, Any]:
    """Return Granite's multipliers, whose names GGUF shares with families that divide by them."""
    return {
        "attention_multiplier": settings.find(".attention.scale", float) or 1.0,
        "embedding_multiplier": settings.find(".embedding_scale", float) or 1.0,
        "residual_multiplier": settings.find(".residual_scale", float) or 1.0,
        "logits_scaling": settings.find(".logit_scale", float) or 1.0,
    }


def grouped_experts(settings: Settings) -> dict[str, Any]:
    """Return the settings of experts that are picked within groups, and of shared ones."""
    return {
        "n_routed_experts": settings.number(".expert_count"),
        "n_shared_experts": settings.find(".expert_shared_count", int) or 0,
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "moe_intermediate_size": settings.number(".expert_feed_forward_length"),
        "first_k_dense_replace": settings.find(".leading_dense_block_count", int) or 0,
        "routed_scaling_factor": settings.find(".expert_weights_scale", float) or 1.0,
        "norm_topk_prob": settings.find(".expert_weights_norm", bool) is not False,
        "n_group": settings.find(".expert_group_count", int) or 1,
        "topk_group": settings.find(".expert_group_used_count", int) or 1,
    }


def drafting(settings: Settings) -> dict[str, int]:
    """Return the number of layers at the end that draft further tokens."""
    return {"num_nextn_predict_layers": num_drafting(settings)}
