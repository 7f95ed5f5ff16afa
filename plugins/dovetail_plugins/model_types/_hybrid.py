"""Shared by the hybrid families: kinds of layers, sizes of mixers, and what a row caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.cache_facts import CacheFacts

if TYPE_CHECKING:
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

Config = Mapping[str, Any]
FULL, MIXER = "full_attention", "linear_attention"
"""The kinds of layers: some attend, the others mix by a state."""

MAMBA2_DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
"""config.json defaults of Mamba 2 mixers."""


def inner_size(config: Config) -> int:
    """Return the channels of a mixer."""
    return int(config["mamba_expand"] * config["hidden_size"])


def mamba2_sizes(config: Config) -> Mamba2Sizes:
    """Return the sizes of a Mamba 2 mixer; its groups of channels are gated, then normed."""
    from dovetail_plugins.layers.mixers.mamba2 import Mamba2Sizes

    inner, heads = inner_size(config), int(config["mamba_n_heads"])
    groups, head = int(config["mamba_n_groups"]), config["mamba_d_head"]
    low, high = config.get("time_step_limit") or (0.0, float("inf"))
    return Mamba2Sizes(
        heads=heads,
        head=inner // heads if head == "auto" else int(head),
        groups=groups,
        state=int(config["mamba_d_state"]),
        conv=int(config["mamba_d_conv"]),
        norm_group=inner // groups,
        eps=float(config["rms_norm_eps"]),
        dt_limit=(float(low), float(high)),
        has_bias=bool(config["mamba_proj_bias"]),
        has_out_bias=bool(config["mamba_proj_bias"]),
        has_conv_bias=bool(config["mamba_conv_bias"]),
    )


def mamba2_cache(config: Config, layer_types: Sequence[str]) -> CacheFacts:
    """Return what a row caches in attention layers and in Mamba 2 mixers."""
    inner, state = inner_size(config), int(config["mamba_d_state"])
    channels = inner + 2 * int(config["mamba_n_groups"]) * state
    return cache_facts(config, layer_types, channels=channels, state_numbers=inner * state)


def cache_facts(
    config: Config, layer_types: Sequence[str], *, channels: int, state_numbers: int
) -> CacheFacts:
    """Return what a row caches if mixers' convolutions have `channels` channels."""
    return CacheFacts(
        num_attention_layers=layer_types.count(FULL),
        num_state_layers=layer_types.count(MIXER),
        conv_numbers=channels * (int(config["mamba_d_conv"]) - 1),
        state_numbers=state_numbers,
    )
