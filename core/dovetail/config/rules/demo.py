"""What comes with the bundled demo model: settings that it was trained for, used when no model is
named, and checkpoints of drafters, used beside it when none of theirs is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.model_path import DEMO_PATH
from dovetail.config.config import DEMO_ORIGIN, Config

ORIGIN = DEMO_ORIGIN
DEMO_FIELDS = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "reasoning_parser": "qwen3",
}


def with_demo_fields(config: Config) -> Config:
    """Return the config with the demo model's parsers where none was chosen; else unchanged."""
    if config.model.model is not None or config.gateway.models is not None:
        return config
    fields = {name: v for name, v in DEMO_FIELDS.items() if not config.is_given(name)}
    return config.with_fields(fields, origin=ORIGIN)


DRAFTS_PATH = DEMO_PATH / "drafts"
DRAFTS_PAUSE_ABOVE = 16
"""With more requests the demo model's step is bound by arithmetic: a verified draft costs about as
much as a drawn token (docs/benchmarks_notebook.md)."""
DRAFTS_QUANTIZATION = {"cpu": "int8"}
"""How the bundled drafters' weights are kept unless the flag says so, by the type of device: in 8
bits they fit a core's own cache, and a draft takes half as long (docs/benchmarks_notebook.md)."""
DRAFT_TOKENS = {"draft_model": 12, "eagle": 8}
"""How long drafts may be unless the flag says so, where they often come true to the end."""


def bundled_drafts() -> list[str]:
    """Return the methods whose checkpoints for the demo model are bundled."""
    return sorted(file.parent.name for file in DRAFTS_PATH.glob("*/config.json"))


def with_bundled_draft(
    settings: Mapping[str, Any], method: str, model_path: str, device_type: str
) -> Mapping[str, Any]:
    """Return a drafter's settings, naming the bundled checkpoint, and how its weights are kept,
    where the model is the demo model and no checkpoint is named."""
    is_demo = Path(model_path).resolve() == DEMO_PATH
    if settings.get("model") is not None or not is_demo or method not in bundled_drafts():
        return settings
    kept = DRAFTS_QUANTIZATION.get(device_type)
    usual = {} if kept is None else {"quantization": kept}
    return {**usual, **settings, "model": str(DRAFTS_PATH / method)}
