"""quantization_config of compressed-tensors checkpoints: one scheme for all linear layers.

Imports no torch. Source: https://github.com/vllm-project/compressed-tensors (QuantizationConfig).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def settings_of(
    *,
    format: str,
    bits: int,
    group: int | None,
    has_int8_inputs: bool,
    whole: Sequence[str],
) -> Mapping[str, Any]:
    """Return the config. `group` None: a scale per output; `whole`: unquantized layers."""
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": "channel" if group is None else "group",
        "group_size": group,
        "dynamic": False,
        "observer": "minmax",
    }
    inputs = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "token",
        "dynamic": True,
    }
    scheme = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs if has_int8_inputs else None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": list(whole),
    }


def words_unfit(shape: tuple[int, int], bits: int) -> str:
    """Return why rows of integers do not fill int32 words; empty when they do."""
    count = 32 // bits
    return f"its inputs are not a multiple of {count}" if shape[1] % count else ""
