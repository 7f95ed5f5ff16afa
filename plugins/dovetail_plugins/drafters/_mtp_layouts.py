"""Where checkpoints store their multi-token-prediction layer, and how they name its parts.

A layout has the prefix of the tensor names, how the decoder layer's names differ from the family's,
and the order in which vector and state are joined. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dovetail.errors import ConfigError

FUSED: Mapping[str, tuple[str, str]] = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", "gate"),
    "up_proj": ("gate_up_proj", "up"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """`held` is the name prefix ({layers} is the model's number of layers, "model." may precede
    it); `block` is the decoder layer's prefix after it. `own` names the other parts: the norms of
    vector, state and result, and the projection that joins the first two. The model itself also has
    the tensors in `unused`.

    `is_state_first`: the state precedes the vector in the joining projection. `norms_states`: the
    state that the next token continues is the normed one. `settings` are config.json fields for a
    model of that layer only. `count` names the field with the number of such layers (default
    `usual_count`). `turned` is the field with the number of rotary dimensions of a head (empty: the
    whole head). `renames` and `fused`: see WeightMap.
    """

    held: str
    own: tuple[str, str, str, str]
    block: str = ""
    unused: tuple[str, ...] = ()
    is_state_first: bool = False
    norms_states: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    count: str = "num_nextn_predict_layers"
    usual_count: int = 0
    turned: str = ""
    renames: tuple[tuple[str, str], ...] = ()
    fused: Mapping[str, tuple[str, str]] = field(default_factory=lambda: FUSED)

    def prefix(self, num_layers: int) -> str:
        """Return the prefix of the layer's names for a model with `num_layers` layers."""
        return self.held.format(layers=num_layers)

    def local(self, name: str, num_layers: int) -> str | None:
        """Return a tensor's name in the drafter; None if it is not part of the layer."""
        prefix = self.prefix(num_layers)
        name = name.removeprefix("model.")
        if not name.startswith(prefix):
            return None
        rest = name.removeprefix(prefix)
        if rest.startswith(self.unused):
            return None
        for theirs, ours in zip(self.own, OWN, strict=True):
            if rest.startswith(f"{theirs}."):
                return ours + rest.removeprefix(theirs)
        return f"block.{rest.removeprefix(self.block)}"


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
    settings={"layer_types": ["full_attention"], "mlp_only_layers": []},
    usual_count=1,
    fused={**FUSED, "q_proj": ("qkv_proj", "q_and_gate")},
)
QWEN3_5 = replace(
    QWEN,
    count="mtp_num_hidden_layers",
    usual_count=0,
    unused=("embed_tokens.", "shared_head."),
)
DEEPSEEK = replace(
    NEXTN,
    settings={**NEXTN.settings, "mlp_layer_types": None},
    turned="qk_rope_head_dim",
    fused={name: FUSED[name] for name in ("gate_proj", "up_proj")},
)
LAYOUTS = {
    "mimo": MIMO,
    "glm4_moe": NEXTN,
    "qwen3_next": QWEN,
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), QWEN3_5),
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
}
"""By the model type of config.json."""


def layout_of(config: Mapping[str, Any]) -> MtpLayout:
    """Return the layout of a checkpoint with layers for further tokens. Raises: ConfigError"""
    found = LAYOUTS.get(str(config.get("model_type")))
    if found is None:
        raise ConfigError(
            f"layers for further tokens of the model type {config.get('model_type')} are not "
            "supported.",
            where="--speculative-config.method",
            fix=f"known are {', '.join(LAYOUTS)}; use another drafter, such as ngram.",
        )
    number = config.get(found.count, found.usual_count)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(
            f"the checkpoint has no layers for further tokens ({found.count} is {number!r}).",
            where="--speculative-config.method",
            fix="use another drafter, such as ngram.",
        )
    return found
