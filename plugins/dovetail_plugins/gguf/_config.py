"""A GGUF file's settings as the config.json that the same model has elsewhere. Imports no torch.

Source: the key names of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and what
llama.cpp's converters write under them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf._file import Extent, Model, find_file, read_model
from dovetail_plugins.gguf._names import LAYOUTS, has_head, stored_types
from dovetail_plugins.gguf._types import FLOAT_DTYPES

ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"}
)
"""Control tokens that end an answer whatever the settings say."""
HARMONY_ENDS = frozenset({"<|return|>", "<|call|>", "<|endoftext|>"})
"""The same of a vocabulary with the first two, in which <|end|> ends one message of several."""
_CONTROL = 3
_KINDS = {True: "sliding_attention", False: "full_attention"}
_MAX_FACTORS = 4096


def read_config(path: Path) -> dict[str, Any] | None:
    """Return the config.json that a GGUF file means, None where the path has no such file.

    Raises: ConfigError for a file that is malformed or whose architecture is not read.
    """
    file = find_file(path)
    return None if file is None else config_of(read_model(file))


def config_of(model: Model) -> dict[str, Any]:
    """Return the config.json that a file's settings mean. Raises: ConfigError"""
    settings = Settings(model)
    architecture = settings.architecture
    family = _FAMILIES[architecture](settings)
    types = stored_types(model, LAYOUTS[architecture])
    stored = {"quantization_config": {"quant_method": "gguf", "types": types}} if types else {}
    config = _common(settings) | _ends(settings) | family | stored
    _check(settings, config)
    return config


def _check(settings: Settings, config: Mapping[str, Any]) -> None:
    """Raises: ConfigError where a size is not that of the tensors: it would be built before any
    tensor is found not to fit."""
    blocks = {one.name.split(".")[1] for one in settings.model.extents if one.name[:4] == "blk."}
    heads, size = config["num_attention_heads"], config["head_dim"]
    inner = config.get("intermediate_size") or config.get("n_inner")
    inner = 2 * inner if inner and config["model_type"] in ("phi3", "glm4") else inner
    experts = ("num_experts", "num_local_experts", "n_routed_experts")
    rows = {
        "blk.0.attn_q.weight": heads * size,
        "blk.0.attn_k.weight": config["num_key_value_heads"] * size,
        "blk.0.ffn_up.weight": inner,
        "blk.0.ffn_up_exps.weight": next((config[n] for n in experts if config.get(n)), None),
    }
    told = {"blocks": settings.number(".block_count"), "token_embd.weight": config["hidden_size"]}
    table = settings.tensor("token_embd.weight")
    sizes = {"blocks": len(blocks), "token_embd.weight": table.shape[1] if table else 0}
    for name, size in rows.items():
        extent = settings.tensor(name)
        if extent is not None:
            told[name], sizes[name] = size, extent.shape[0]
    wrong = [name for name in told if told[name] != sizes[name]]
    if wrong:
        raise ConfigError(
            f"{wrong[0]}: the file holds {sizes[wrong[0]]}, its settings say {told[wrong[0]]}.",
            where=str(settings.model.path),
            fix="download the file again.",
        )


class Settings:
    """The settings of a file by name, each checked for its kind."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._values = model.settings
        self.architecture = str(self._values.get("general.architecture", ""))
        if self.architecture not in LAYOUTS:
            raise ConfigError(
                f'general.architecture "{self.architecture}" is not supported in GGUF files.',
                where=str(model.path),
                fix=f"use one of {', '.join(sorted(LAYOUTS))}, or another checkpoint.",
            )

    def find(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a setting or None; names of the architecture's own begin with a dot.

        Raises: ConfigError when it is of another kind.
        """
        key = f"{self.architecture}{name}" if name.startswith(".") else name
        value = self._values.get(key)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        is_switch = isinstance(value, bool) and bool not in kinds
        if value is not None and (is_switch or not isinstance(value, kind)):
            raise ConfigError(f"{key} is {value!r}"[:200], where=str(self.model.path))
        return value

    def number(self, name: str) -> int:
        """Return a count that is one for all layers. Raises: ConfigError when there is none."""
        value = self.find(name, (int, list))
        if isinstance(value, list):
            value = value[0] if value and len({*map(str, value)}) == 1 else None
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ConfigError(
                f"{self.architecture}{name} is missing, not positive, or differs between layers.",
                where=str(self.model.path),
            )
        return value

    def tensor(self, name: str) -> Extent | None:
        """Return where a tensor lies."""
        return next((one for one in self.model.extents if one.name == name), None)

    def factors(self, name: str) -> list[float] | None:
        """Return a short float tensor's numbers, None where there is no such tensor."""
        extent = self.tensor(name)
        if extent is None:
            return None
        if extent.type.name != "F32" or extent.num_bytes > 4 * _MAX_FACTORS:
            raise ConfigError(
                f"{name} is not a list of at most {_MAX_FACTORS} float32 numbers.",
                where=str(extent.path),
            )
        with extent.path.open("rb") as file:
            file.seek(extent.start)
            return list(struct.unpack(f"<{extent.num_bytes // 4}f", file.read(extent.num_bytes)))


def _common(settings: Settings) -> dict[str, Any]:
    """Return the settings that all families have."""
    heads = settings.number(".attention.head_count")
    hidden = settings.number(".embedding_length")
    given = settings.find(".attention.head_count_kv", (int, list))
    return {
        "vocab_size": _vocab_size(settings),
        "hidden_size": hidden,
        "num_hidden_layers": settings.number(".block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if given is None
        else settings.number(".attention.head_count_kv"),
        "head_dim": settings.find(".attention.key_length", int) or hidden // heads,
        "max_position_embeddings": settings.number(".context_length"),
        "dtype": _dtype(settings.model),
        "tie_word_embeddings": not has_head(settings.model.extents),
    }  # fmt: skip


def _vocab_size(settings: Settings) -> int:
    """Return the rows of the token table."""
    table = settings.tensor("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ConfigError(
            "the tensor token_embd.weight is missing or not a matrix.",
            where=str(settings.model.path),
        )
    return table.shape[0]


def _dtype(model: Model) -> str:
    """Return the type of what is not quantized, the KV cache too: the one most matrices are stored
    in. Where all are quantized it is half precision, which keeps more of them than bfloat16 (0.5B
    Qwen, Q4_K_M: 22 of 2,044 likeliest tokens differ, 33 in bfloat16).
    """
    names = [one.type.name for one in model.extents if len(one.shape) > 1]
    halves = [name for name in names if name in FLOAT_DTYPES and name != "F32"]
    if halves:
        return FLOAT_DTYPES[max(halves, key=halves.count)]
    return "float32" if set(names) <= {"F32"} else "float16"


def _ends(settings: Settings) -> dict[str, Any]:
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


def _rope(settings: Settings) -> dict[str, Any]:
    """Return the rotary settings, in config.json's words."""
    theta = settings.find(".rope.freq_base", float) or 10000.0
    size = settings.find(".rope.dimension_count", int)
    head = _common(settings)["head_dim"]
    share = {} if size in (None, head) else {"partial_rotary_factor": size / head}
    return {"rope_theta": theta, "rope_scaling": _scaling(settings)} | share


def _scaling(settings: Settings) -> dict[str, Any] | None:
    """Return how the rotary embedding is stretched, None where it is not."""
    trained = settings.find(".rope.scaling.original_context_length", int)
    factor = settings.find(".rope.scaling.factor", float)
    attention = settings.find(".rope.scaling.attn_factor", float)
    long, short = (settings.factors(f"rope_factors_{word}.weight") for word in ("long", "short"))
    each = settings.factors("rope_freqs.weight")
    length = settings.number(".context_length")
    if each is not None:
        # Divisors of every pair, computed beforehand: how Llama 3 is stretched.
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
        scaling = {"rope_type": "yarn", "factor": factor}
        return scaling | ({} if trained is None else {"original_max_position_embeddings": trained})
    if kind not in (None, "none", "yarn", "longrope"):
        raise ConfigError(
            f'the rope scaling "{kind}" is not supported.', where=str(settings.model.path)
        )
    return None


def _gated(settings: Settings, model_type: str, name: str, **more: Any) -> dict[str, Any]:
    """Return the settings of families with rotary attention and a gated MLP."""
    inner = settings.find(".feed_forward_length", (int, list))
    has_inner = inner not in (None, 0)
    return {
        "model_type": model_type,
        "architectures": [name],
        "intermediate_size": settings.number(".feed_forward_length") if has_inner else None,
        "rms_norm_eps": settings.find(".attention.layer_norm_rms_epsilon", float) or 1e-6,
        "sliding_window": None,
        **_rope(settings),
        **more,
    }


def _llama(settings: Settings) -> dict[str, Any]:
    window = settings.find(".attention.sliding_window", int) or None
    experts = settings.find(".expert_count", int) or 0
    has_bias = settings.tensor("blk.0.attn_q.bias") is not None
    if experts:
        picked = settings.number(".expert_used_count")
        return _gated(settings, "mixtral", "MixtralForCausalLM", num_local_experts=experts,
                      num_experts_per_tok=picked, sliding_window=window)  # fmt: skip
    if window:
        return _gated(settings, "mistral", "MistralForCausalLM", sliding_window=window)
    return _gated(settings, "llama", "LlamaForCausalLM", attention_bias=has_bias)


def _qwen2(settings: Settings) -> dict[str, Any]:
    return _gated(settings, "qwen2", "Qwen2ForCausalLM", use_sliding_window=False)


def _qwen3(settings: Settings) -> dict[str, Any]:
    return _gated(settings, "qwen3", "Qwen3ForCausalLM", use_sliding_window=False)


def _experts(settings: Settings) -> dict[str, Any]:
    return {
        "num_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "moe_intermediate_size": settings.number(".expert_feed_forward_length"),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }


def _qwen2moe(settings: Settings) -> dict[str, Any]:
    shared = settings.number(".expert_shared_feed_forward_length")
    more = _experts(settings) | {
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": shared,
    }
    return _gated(settings, "qwen2_moe", "Qwen2MoeForCausalLM", **more)


def _qwen3moe(settings: Settings) -> dict[str, Any]:
    more = _experts(settings) | {"norm_topk_prob": True}
    return _gated(settings, "qwen3_moe", "Qwen3MoeForCausalLM", **more)


def _gpt_oss(settings: Settings) -> dict[str, Any]:
    inner = settings.number(".expert_feed_forward_length")
    kinds = ("sliding_attention", "full_attention") * settings.number(".block_count")
    rope = _rope(settings)
    more = {
        "rope_scaling": {**(rope["rope_scaling"] or {"rope_type": "default"}), "truncate": False},
        "intermediate_size": inner,
        "num_local_experts": settings.number(".expert_count"),
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "sliding_window": settings.find(".attention.sliding_window", int) or 128,
        "layer_types": list(kinds[: settings.number(".block_count")]),
        "attention_bias": settings.tensor("blk.0.attn_q.bias") is not None,
    }
    return _gated(settings, "gpt_oss", "GptOssForCausalLM", **more)


def _olmo2(settings: Settings) -> dict[str, Any]:
    window = settings.find(".attention.sliding_window", int)
    if not window:
        return _gated(settings, "olmo2", "Olmo2ForCausalLM")
    more = {"sliding_window": window, **_kinds(settings, every=4)}
    return _gated(settings, "olmo3", "Olmo3ForCausalLM", **more)


def _kinds(settings: Settings, every: int) -> dict[str, Any]:
    """Return each layer's kind: all slide but every so many, unless the file says otherwise."""
    told = settings.find(".attention.sliding_window_pattern", (int, list))
    count = settings.number(".block_count")
    slides = told if isinstance(told, list) else [(i + 1) % (told or every) for i in range(count)]
    return {"layer_types": [_KINDS[bool(one)] for one in slides]}


def _cohere2(settings: Settings) -> dict[str, Any]:
    more = {
        "layer_norm_eps": settings.find(".attention.layer_norm_epsilon", float) or 1e-5,
        "logit_scale": settings.find(".logit_scale", float) or 0.0625,
        "sliding_window": settings.find(".attention.sliding_window", int) or 4096,
        **_kinds(settings, every=4),
    }
    return _gated(settings, "cohere2", "Cohere2ForCausalLM", **more)


def _glm4(settings: Settings) -> dict[str, Any]:
    has_bias = settings.tensor("blk.0.attn_q.bias") is not None
    pad = settings.find("tokenizer.ggml.padding_token_id", int)
    more = {"attention_bias": has_bias, "pad_token_id": pad}
    return _gated(settings, "glm4", "Glm4ForCausalLM", **more)


def _glm4moe(settings: Settings) -> dict[str, Any]:
    drafting = settings.find(".nextn_predict_layers", int) or 0
    renormalizes = settings.find(".expert_weights_norm", bool)
    more = {
        "num_hidden_layers": settings.number(".block_count") - drafting,
        "num_nextn_predict_layers": drafting,
        "attention_bias": settings.tensor("blk.0.attn_q.bias") is not None,
        "use_qk_norm": settings.tensor("blk.0.attn_q_norm.weight") is not None,
        "n_routed_experts": settings.number(".expert_count"),
        "n_shared_experts": settings.find(".expert_shared_count", int) or 0,
        "num_experts_per_tok": settings.number(".expert_used_count"),
        "moe_intermediate_size": settings.number(".expert_feed_forward_length"),
        "first_k_dense_replace": settings.find(".leading_dense_block_count", int) or 0,
        "routed_scaling_factor": settings.find(".expert_weights_scale", float) or 1.0,
        "norm_topk_prob": renormalizes is not False,
        "n_group": settings.find(".expert_group_count", int) or 1,
        "topk_group": settings.find(".expert_group_used_count", int) or 1,
    }
    return _gated(settings, "glm4_moe", "Glm4MoeForCausalLM", **more)


def _phi3(settings: Settings) -> dict[str, Any]:
    trained = settings.find(".rope.scaling.original_context_length", int)
    more = {} if trained is None else {"original_max_position_embeddings": trained}
    window = settings.find(".attention.sliding_window", int) or None
    return _gated(settings, "phi3", "Phi3ForCausalLM", sliding_window=window, **more)


def _gemma(settings: Settings) -> dict[str, Any]:
    return _gated(settings, "gemma", "GemmaForCausalLM", hidden_act="gelu_pytorch_tanh")


def _query_scale(settings: Settings, largest: int) -> dict[str, Any]:
    """Return the number whose root queries are divided by: the largest size of a generation, known
    by its layers, divides by its hidden size per head."""
    common = _common(settings)
    per_head = common["hidden_size"] // common["num_attention_heads"]
    is_largest = common["num_hidden_layers"] == largest
    return {"query_pre_attn_scalar": per_head if is_largest else common["head_dim"]}


def _gemma2(settings: Settings) -> dict[str, Any]:
    more = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": settings.find(".attention.sliding_window", int) or 4096,
        "attn_logit_softcapping": settings.find(".attn_logit_softcapping", float),
        "final_logit_softcapping": settings.find(".final_logit_softcapping", float),
        **_query_scale(settings, largest=46),
    }
    return _gated(settings, "gemma2", "Gemma2ForCausalLM", **more)


def _gemma3(settings: Settings) -> dict[str, Any]:
    rope = _rope(settings)
    local = settings.find(".rope.freq_base_swa", float) or 10000.0
    more = {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": settings.find(".attention.sliding_window", int) or 1024,
        "rope_theta": settings.find(".rope.freq_base", float) or 1e6,
        "rope_local_base_freq": local,
        "rope_scaling": rope["rope_scaling"],
        "final_logit_softcapping": settings.find(".final_logit_softcapping", float),
        **_pattern(settings),
        **_query_scale(settings, largest=62),
    }
    return _gated(settings, "gemma3_text", "Gemma3ForCausalLM", **more)


def _pattern(settings: Settings) -> dict[str, Any]:
    """Return which layers slide: every sixth does not, unless the file says otherwise."""
    told = settings.find(".attention.sliding_window_pattern", (int, list))
    if isinstance(told, list):
        return {"layer_types": [_KINDS[bool(slides)] for slides in told]}
    return {"sliding_window_pattern": told or 6}


def _gpt2(settings: Settings) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": settings.number(".context_length"),
        "n_inner": settings.number(".feed_forward_length"),
        "layer_norm_epsilon": settings.find(".attention.layer_norm_epsilon", float) or 1e-5,
        "activation_function": "gelu_new",
    }


_FAMILIES: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen2moe": _qwen2moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "phi3": _phi3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "olmo2": _olmo2,
    "cohere2": _cohere2,
    "glm4": _glm4,
    "glm4moe": _glm4moe,
    "gpt-oss": _gpt_oss,
    "gpt2": _gpt2,
}
assert set(_FAMILIES) == set(LAYOUTS)
