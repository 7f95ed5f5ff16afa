"""Settings that the bundled demo model was trained for, used when the path names no model."""

from __future__ import annotations

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
