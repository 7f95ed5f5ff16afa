"""StructuredOutputsConfig: answers held to a grammar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsConfig:
    """Answers held to a grammar."""

    structured_outputs_config: Mapping[str, Any] = flag(
        {},
        kind="guided_decoding_backend",
        help="how answers are held to a grammar: backend, disable_fallback, "
        "disable_any_whitespace, disable_additional_properties",
    )
