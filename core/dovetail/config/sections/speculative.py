"""SpeculativeConfig: whether and how tokens are guessed ahead of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Speculation."""

    speculative_config: Mapping[str, Any] = flag(
        {},
        kind="drafter",
        help="guess tokens ahead and verify several in one step: method names the drafter, "
        "num_speculative_tokens is the longest guess (4), disable_by_batch_size the most requests, "
        "running or waiting, with which guessing goes on; further keys are the drafter's options, "
        "for ngram prompt_lookup_max and prompt_lookup_min",
        default_note="no guessing",
    )
