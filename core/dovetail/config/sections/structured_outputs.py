"""StructuredOutputsConfig: settings of structured outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsConfig:
    "Structured outputs."

    structured_outputs_config: Mapping[str, Any] = flag(
        {},
        kind="structured_output_backend",
        help="how structured outputs are enforced: backend, disable_fallback, "
        "disable_any_whitespace, disable_additional_properties",
    )
