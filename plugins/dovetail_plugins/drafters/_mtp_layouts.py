"""Where checkpoints store their multi-token-prediction layer, and how they name its parts.

A layout has the prefix of the tensor names, how the decoder layer's names differ from the family's,
and the order in which vector and state are joined. Knows no tensors. The table for users:
docs/reference/mtp.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dovetail.errors import ConfigError

Config = Mapping[str, Any]
FLAG = "--speculative-config.method"
FUSED: Mapping[str, tuple[str, str]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", "gate"),
    "up_proj": ("gate_up_proj", "up"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """`held` is the name prefix ({layers} is the model's number of layers; "model." and
    "language_model." may precede it); `block` is the decoder layer's prefix after it, which a
    number follows if there may be several (`is_numbered`). `own` names the other parts: the norms
    of vector, state and result, and the projection that joins the first two ("*" is any number).
    `shared` has tensors of the model itself that are also parts here. The model itself also has the
    tensors in `unused`.

    `is_state_first`: the state precedes the vector in the joining projection. `norms_states`: the
    state that the next token continues is the normed one. `settings` are config.json fields for a
    model of that layer only, `derived` those that depend on config.json. `count` names the field
    with the number of such layers (default `usual_count`). `turned` is the field with the number of
    rotary dimensions of a head (empty: the whole head; None: nothing is rotated). `optional` are
    parts of the decoder layer that it may be built without, whose tensors are then not read.
    `renames` and `fused`: see WeightMap.
    """

    held: str
    own: tuple[str, str, str, str]
    block: str = ""
    is_numbered: bool = False
    shared: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    is_state_first: bool = False
    norms_states: bool = True
    settings: Config = field(default_factory=dict)
    derived: Callable[[Config], Config] = lambda config: {}
    count: str = "num_nextn_predict_layers"
    usual_count: int = 0
    turned: str | None = ""
    optional: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    fused: Mapping[str, tuple[str, str]] = field(default_factory=lambda: FUSED)

    def settings_of(self, config: Config) -> dict[str, Any]:
        """Return config.json of a model of the layer only. Raises: ConfigError"""
        return {**config, "num_hidden_layers": 1, **self.settings, **self.derived(config)}

    def local(self, name: str, num_layers: int) -> str | None:
        """Return a tensor's name in the drafter; None if it is not part of the layer."""
        name = name.removeprefix("model.").removeprefix("language_model.").removeprefix("model.")
        for theirs, ours in self.shared.items():
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        prefix = self.held.format(layers=num_layers)
        if not name.startswith(prefix):
            return None
        rest = name.removeprefix(prefix)
        if rest.startswith(self.unused):
            return None
        for theirs, ours in zip(self.own, OWN, strict=True):
            pattern = re.escape(theirs).replace(r"\*", r"\d+")
            if theirs and (found := re.match(rf"{pattern}\.", rest)):
                return f"{ours}.{rest[found.end() :]}"
        return f"block.{'' if self.is_numbered else '0.'}{rest.removeprefix(self.block)}"


OWN = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj")
"""The parts other than the decoder layer, named as in MiMo."""

MIMO = MtpLayout(held="mtp_layers.0.", own=OWN, is_state_first=True)
NEXTN = MtpLayout(
    held="layers.{layers}.",
    own=("enorm", "hnorm", "shared_head.norm", "eh_proj"),
    unused=("embed_tokens.", "shared_head.head."),
    norms_states=False,
    settings={"first_k_dense_replace": 0},
    renames=((".gate.e_score_correction_bias", ".e_score_correction_bias"),),
)
QWEN = MtpLayout(
    held="mtp.",
    own=("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc"),
    block="layers.0.",
    unused=("embed_tokens.", "shared_head."),
    settings={"layer_types": ["full_attention"], "mlp_only_layers": []},
    usual_count=1,
    fused={**FUSED, "q_proj": ("qkv_proj", "q_and_gate")},
)
QWEN3_5 = replace(QWEN, count="mtp_num_hidden_layers", usual_count=0)
QWEN3 = replace(QWEN3_5, fused=FUSED)
"""Not published by Qwen: dovetail's demo model has such a layer."""
ERNIE = MtpLayout(
    held="mtp_",
    own=("emb_norm.0", "hidden_norm.0", "", "linear_proj.0"),
    block="block.0.",
    shared={"norm.": "final_layernorm."},
    settings={"moe_layer_start_index": 1, "moe_layer_end_index": 1},
)
DEEPSEEK = replace(
    NEXTN,
    settings={**NEXTN.settings, "mlp_layer_types": None},
    turned="qk_rope_head_dim",
    fused={name: FUSED[name] for name in ("gate_proj", "up_proj")},
)
INDEXED = replace(
    DEEPSEEK,
    settings={
        **DEEPSEEK.settings,
        **dict.fromkeys(("indexer_types", "index_topk_pattern", "index_topk_freq")),
    },
    optional=("indexer",),
)
"""The layer has its own indexer, also where layers of the model share one."""
HY3 = replace(
    NEXTN,
    own=("enorm", "hnorm", "final_layernorm", "eh_proj"),
    settings={"mlp_layer_types": ["sparse"]},
    renames=(
        (".mlp.router.gate.", ".mlp.gate."),
        (".mlp.expert_bias", ".mlp.e_score_correction_bias"),
        (".shared_mlp.", ".shared_experts."),
    ),
)
LING = replace(
    DEEPSEEK,
    own=("enorm", "hnorm", "final_layernorm", "eh_proj"),
    norms_states=True,
    settings={**DEEPSEEK.settings, "layer_types": ["full_attention"]},
    renames=(
        (".attention.", ".self_attn."),
        (".self_attn.dense.", ".self_attn.o_proj."),
        (".gate.expert_bias", ".e_score_correction_bias"),
        *NEXTN.renames,
    ),
)
LONGCAT = replace(
    DEEPSEEK,
    held="mtp.layers.0.",
    own=("enorm.m", "hnorm.m", "", "eh_proj"),
    shared={"mtp.norm.": "final_layernorm."},
    settings={"num_layers": 1},
    usual_count=1,
    renames=((".transformer_layer.mlp.", ".mlp."),),
)


def _nemotron_blocks(config: Config) -> Config:
    """Return the sorts of blocks of the layer: one norm and one part each."""
    from dovetail_plugins.model_types.nemotron_h import ATTENTION, EXPERTS, MLP, layer_types

    stated = {
        "layers_block_type": config.get("mtp_layers_block_type"),
        "hybrid_override_pattern": config.get("mtp_hybrid_override_pattern") or "*E",
    }
    kinds = layer_types(stated)
    if not set(kinds) <= {ATTENTION, EXPERTS, MLP}:
        raise ConfigError(
            f"the layer for further tokens has the blocks {', '.join(kinds)}, and one that keeps a "
            "state cannot take back tokens that do not come true.",
            where=FLAG,
            fix="use another drafter, such as ngram.",
        )
    return {"layers_block_type": list(kinds), "num_hidden_layers": len(kinds)}


NEMOTRON = MtpLayout(
    held="mtp.layers.",
    own=("*.enorm", "*.hnorm", "*.final_layernorm", "*.eh_proj"),
    is_numbered=True,
    derived=_nemotron_blocks,
    turned=None,
    renames=NEXTN.renames,
    fused={name: FUSED[name] for name in ("q_proj", "k_proj", "v_proj")},
)
LAYOUTS = {
    "mimo": MIMO,
    "glm4_moe": NEXTN,
    "ernie4_5_moe": ERNIE,
    "nemotron_h": NEMOTRON,
    "longcat_flash": LONGCAT,
    "bailing_hybrid": LING,
    "qwen3": QWEN3,
    "qwen3_next": QWEN,
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), QWEN3_5),
    "deepseek_v3": DEEPSEEK,
    **dict.fromkeys(("kimi_k2", "glm4_moe_lite"), DEEPSEEK),
    "hy_v3": HY3,
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), INDEXED),
}
"""By the model type of config.json."""


_OVER_TRANSFORMERS = (
    "the model runs over transformers, and only layers of our own families can draft"
)
REFUSED = {
    **dict.fromkeys(("gemma4", "gemma4_text"), "it has its own checkpoint: name that as model"),
    "deepseek_v4": "it reads several streams of states, and a model gives one",
    **dict.fromkeys(
        ("hy_v4", "hy_v4_vl_text", "minimax_m3_vl", "minimax_m3_vl_text"),
        "transformers leaves the layer's weights out, so that its layout is not known here",
    ),
    "glm5_next_text": "transformers leaves the layer out, so how it joins the streams is unknown",
    "mimo_v2_flash": f"{_OVER_TRANSFORMERS}; its window and sinks are other ones than the model's",
    **dict.fromkeys(
        (
            *("glm4v_moe", "glm_ocr", "exaone_moe", "exaone4_5"),
            *("step3p5", "step3p7", "solar_open", "mellum"),
        ),
        _OVER_TRANSFORMERS,
    ),
}
"""Model types that are published with such a layer -> why it does not draft here."""


def layout_of(config: Config) -> MtpLayout:
    """Return the layout of a checkpoint with layers for further tokens. Raises: ConfigError"""
    model_type = str(config.get("model_type"))
    found = LAYOUTS.get(model_type)
    if found is None:
        why = f": {REFUSED[model_type]}" if model_type in REFUSED else ""
        raise ConfigError(
            f"layers for further tokens of the model type {model_type} are not supported{why}.",
            where=FLAG,
            fix=f"known are {', '.join(LAYOUTS)}; use another drafter, such as ngram.",
        )
    number = config.get(found.count, found.usual_count)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(
            f"the checkpoint has no layers for further tokens ({found.count} is {number!r}).",
            where=FLAG,
            fix="use another drafter, such as ngram.",
        )
    return found
