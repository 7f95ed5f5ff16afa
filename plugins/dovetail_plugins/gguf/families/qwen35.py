"""Qwen3.5 and 3.6: value heads of the delta rule lie in another order than in the checkpoint.

Of a key head's value heads the file has the first of every key head, then the second, and so on;
the checkpoint has all of the first key head, then all of the second. Rows are put back. So are
columns of the output's matrix, unless a quantized block holds numbers of two heads: then the model
itself reads the file's order. Imports no torch. Source: _LinearAttentionVReorderBase in
https://github.com/ggml-org/llama.cpp/blob/master/conversion/qwen.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.families.family import STATES, Family, FamilyNames
from dovetail_plugins.gguf.families.layouts import BLOCK, MOE, vectors
from dovetail_plugins.gguf.families.parts import gated, num_drafting, with_sections
from dovetail_plugins.gguf.families.recurrent import delta_rule, gated_query_rows, qwen_experts
from dovetail_plugins.gguf.reading.file import GgufModel
from dovetail_plugins.gguf.reading.metadata import Settings

if TYPE_CHECKING:
    import torch

_OUTPUT = "ssm_out.weight"
_BLOCK = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}


_DRAFTS = {
    "nextn.eh_proj": "mtp.fc",
    "nextn.enorm": "mtp.pre_fc_norm_embedding",
    "nextn.hnorm": "mtp.pre_fc_norm_hidden",
    "nextn.shared_head_norm": "mtp.norm",
    "nextn.embed_tokens": "mtp.embed_tokens",
    "nextn.shared_head_head": "mtp.shared_head",
}


def _delta(settings: Settings) -> dict[str, Any]:
    """Return the settings of the delta rule. Raises: ConfigError for heads that do not divide."""
    sizes = delta_rule(settings)
    keys, values = sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]
    if values % keys or settings.number(".ssm.inner_size") % values:
        raise ConfigError(
            f"{values} value heads (ssm.time_step_rank) of {settings.number('.ssm.inner_size')} "
            f"numbers (ssm.inner_size) do not belong to {keys} key heads (ssm.group_count).",
            where=str(settings.model.path),
            fix="download the file again.",
        )
    more = {
        "linear_heads_are_tiled": _is_tiled(settings),
        "rope_scaling": with_sections(settings, is_interleaved=True),
        "mtp_num_hidden_layers": num_drafting(settings),
    }
    return sizes | more


def _is_tiled(settings: Settings) -> bool:
    """Return whether columns of the output's matrix stay in the file's order, in all layers: a
    block of one of them holds numbers of two heads."""
    size = settings.number(".ssm.inner_size") // settings.number(".ssm.time_step_rank")
    found = (one for one in settings.model.extents if one.name.endswith(f".{_OUTPUT}"))
    is_cut = any(size % one.type.values for one in found)
    return is_cut and settings.number(".ssm.time_step_rank") > settings.number(".ssm.group_count")


def _by_key(model: GgufModel, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of all value heads in the checkpoint's order. Shapes: [H V, ...] -> the same"""
    settings = Settings(model)
    keys, values = settings.number(".ssm.group_count"), settings.number(".ssm.time_step_rank")
    return rows.unflatten(0, (values // keys, keys, -1)).transpose(0, 1).reshape(rows.shape)


def _behind_keys(model: GgufModel, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of queries, keys and values, of which the values are put back."""
    import torch

    settings = Settings(model)
    start = 2 * settings.number(".ssm.group_count") * settings.number(".ssm.state_size")
    return torch.cat((rows[:start], _by_key(model, rows[start:])))


def _columns(model: GgufModel, matrix: torch.Tensor) -> torch.Tensor:
    if _is_tiled(Settings(model)):
        return matrix
    return _by_key(model, matrix.t()).t().contiguous()


_UNDO = {
    "ssm_a": lambda model, tensor: _by_key(model, STATES["ssm_a"](model, tensor)),
    "ssm_dt.bias": _by_key,
    "ssm_alpha": _by_key,
    "ssm_beta": _by_key,
    "attn_gate": _by_key,
    "attn_qkv": _behind_keys,
    "ssm_conv1d": _behind_keys,
    "ssm_norm": lambda model, tensor: tensor,
    "ssm_out": _columns,
    **dict.fromkeys(("nextn.enorm", "nextn.hnorm"), lambda model, tensor: tensor.float() - 1),
}


def _dense(settings: Settings) -> dict[str, Any]:
    return gated(settings, "qwen3_5_text", "Qwen3_5ForCausalLM", **_delta(settings))


def _moe(settings: Settings) -> dict[str, Any]:
    more = _delta(settings) | qwen_experts(settings)
    return gated(settings, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", **more)


def _rows(config: Mapping[str, Any]) -> dict[str, int | None]:
    heads = config["linear_num_value_heads"]
    values = heads * config["linear_value_head_dim"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    both = dict.fromkeys(("attn_qkv.weight", "ssm_conv1d.weight"), 2 * keys + values)
    each = dict.fromkeys(("ssm_a", "ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight"), heads)
    return gated_query_rows(config) | both | each | {"attn_gate.weight": values}


def _names(block: Mapping[str, str]) -> FamilyNames:
    return FamilyNames(
        block=block,
        own=vectors("linear_attn"),
        adds_one=True,
        undo=_UNDO,
        drafts=_DRAFTS,
        draft_blocks="mtp.layers",
    )


FAMILIES = {
    "qwen35": Family(config=_dense, names=_names(BLOCK | _BLOCK), rows=_rows),
    "qwen35moe": Family(config=_moe, names=_names(BLOCK | MOE | _BLOCK), rows=_rows),
}
"""general.architecture -> how files of it are read."""
