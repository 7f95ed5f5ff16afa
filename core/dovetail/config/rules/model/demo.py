"""Settings and drafters of the bundled demo model. Its settings apply if no model is named, and its
drafters if the demo model runs without a drafter checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.config.config import DEMO_ORIGIN, Config

ORIGIN = DEMO_ORIGIN
DEMO_FIELDS = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "reasoning_parser": "qwen3",
}


def with_demo_fields(config: Config) -> Config:
    """Return the config with the demo model's parsers unless others are chosen."""
    if config.model.model is not None or config.gateway.models is not None:
        return config
    fields = {name: v for name, v in DEMO_FIELDS.items() if not config.is_given(name)}
    return config.with_fields(fields, origin=ORIGIN)


DRAFTS_PATH = DEMO_PATH / "drafts"
DRAFTS_PAUSE_ABOVE = 16
"""Default limit for drafting with the demo model. With more requests its step is compute-bound: a
verified draft token costs about as much as a decoded one (docs/benchmarks_notebook.md)."""
DRAFTS_QUANTIZATION = {"cpu": "int8"}
"""Default quantization of the bundled drafters, by device type. In 8 bits they fit in a core's own
cache, and drafting takes half as long (docs/benchmarks_notebook.md)."""
DRAFT_TOKENS = {"draft_model": 12, "eagle": 8, "mtp": 8}
"""The demo model's drafters -> default draft length: drafts are often accepted completely."""


def bundled_drafts() -> list[str]:
    """Return the methods with bundled checkpoints for the demo model."""
    return sorted(file.parent.name for file in DRAFTS_PATH.glob("*/config.json"))


def with_bundled_draft(
    settings: Mapping[str, Any], method: str, model_path: str, device_type: str
) -> Mapping[str, Any]:
    """Return a drafter's settings. If the model is the demo model and no checkpoint is named, they
    name the bundled one and its quantization."""
    is_demo = Path(model_path).resolve() == DEMO_PATH
    if settings.get("model") is not None or not is_demo or method not in bundled_drafts():
        return settings
    quantization = DRAFTS_QUANTIZATION.get(device_type)
    usual = {} if quantization is None else {"quantization": quantization}
    return {**usual, **settings, "model": str(DRAFTS_PATH / method)}
