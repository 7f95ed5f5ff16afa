"""The text models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL, served alone. Imports no torch."""

from __future__ import annotations

from typing import Any

from dovetail_plugins.gguf.families.experts import FAMILIES as EXPERTS
from dovetail_plugins.gguf.families.family import Family
from dovetail_plugins.gguf.families.layouts import LAYOUTS
from dovetail_plugins.gguf.families.parts import gated
from dovetail_plugins.gguf.reading.metadata import Settings


def _qwen2vl(settings: Settings) -> dict[str, Any]:
    return gated(settings, "qwen2", "Qwen2ForCausalLM", use_sliding_window=False)


def _qwen3vl(settings: Settings) -> dict[str, Any]:
    return gated(settings, "qwen3", "Qwen3ForCausalLM", use_sliding_window=False)


FAMILIES = {
    "qwen2vl": Family(config=_qwen2vl, names=LAYOUTS["qwen2"]),
    "qwen3vl": Family(config=_qwen3vl, names=LAYOUTS["qwen3"]),
    "qwen3vlmoe": EXPERTS["qwen3moe"],
}
"""general.architecture -> how files of it are read."""
