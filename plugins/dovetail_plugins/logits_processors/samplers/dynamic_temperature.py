"""DynamicTemperature: a temperature that rises with the entropy of the distribution.

Source: kalomaze, "Dynamic temperature sampling", 2023, with the range and exponent that
https://github.com/ggml-org/llama.cpp/pull/4972 describes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch

COLDEST = 1e-6


class DynamicTemperature(Sampler):
    """Scales the logits so that dividing by the temperature divides by one of the range around it:
    low + (high - low) (entropy / entropy of as many equal tokens)^exponent."""

    info = Info(
        summary="a temperature that rises with the entropy of the distribution",
        source="https://github.com/ggml-org/llama.cpp/pull/4972",
    )
    stage = "before_temperature"
    rank = 1
    settings = {
        "dynatemp_range": Setting(
            what="how far the temperature goes down and up; 0: it stays",
            default=0.0, low=0.0, high=100.0,
        ),
        "dynatemp_exponent": Setting(
            what="the power of the share of the highest entropy",
            default=1.0, low=0.0, high=100.0,
        ),
    }  # fmt: skip

    @classmethod
    def values_of(cls, params: SamplingParams) -> Values:
        """Return the settings, and the temperature. Raises: RequestError"""
        return {**super().values_of(params), "temperature": params.temperature}

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether the temperature moves; a greedy request has none."""
        return values["dynatemp_range"] > 0.0 and values["temperature"] > 0.0

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the scaled logits. Shapes: [S, V] -> [S, V]"""
        from dovetail_plugins.logits_processors.samplers._mass import Mass, numbers

        mass = Mass(logits)
        counts = (logits > float("-inf")).sum(dim=1).tolist()
        triples = zip(batch.rows, mass.entropy, counts, strict=True)
        factors = [
            row.values["temperature"] / temperature_at(row.values, entropy, count)
            for row, entropy, count in triples
        ]
        return mass.below.mul_(numbers(factors, logits))


def temperature_at(values: Mapping[str, float], entropy: float, count: int) -> float:
    """Return the temperature of a distribution over `count` tokens."""
    low = max(0.0, values["temperature"] - values["dynatemp_range"])
    high = values["temperature"] + values["dynatemp_range"]
    if count < 2:
        return high
    share = min(max(entropy / math.log(count), 0.0), 1.0)
    return max(low + (high - low) * share ** values["dynatemp_exponent"], COLDEST)
