"""AdaptiveP: prefers tokens near a probability, so that those of the drawn ones average at it.

Source: MrJackSpade and ddh0, "Adaptive-p", 2025, https://github.com/MrJackSpade/adaptive-p-docs and
https://github.com/ggml-org/llama.cpp/pull/17927.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._feedback import FeedbackSampler, State
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Setting, Values

if TYPE_CHECKING:
    import torch

    from dovetail_plugins.logits_processors.samplers._mass import Mass

PEAK, SHARPNESS, WIDTH = 5.0, 10.0, 0.3


class AdaptiveP(FeedbackSampler):
    """The logit of a token at distance d (in widths) from the aim becomes peak - sharpness d^2 /
    (1 + d). The aim is as far from the target as the decaying average of the drawn tokens, on the
    other side. Use it with min-p, which keeps the tail out."""

    info = Info(
        summary="prefers tokens near a probability",
        source="https://github.com/ggml-org/llama.cpp/pull/17927",
    )
    rank = 2
    settings = {
        "adaptive_target": Setting(
            what="the probability to average at; below 0: off", default=-1.0, low=-1e9, high=1.0
        ),
        "adaptive_decay": Setting(
            what="how much of the average each token keeps", default=0.9, low=0.0, high=0.99
        ),
    }

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether there is a target."""
        return values["adaptive_target"] >= 0.0

    @classmethod
    def first_state(cls, values: Values) -> State:
        """Return (sum of probabilities, sum of their shares), as if the target were reached."""
        shares = 1.0 / (1.0 - values["adaptive_decay"])
        return values["adaptive_target"] * shares, shares

    @classmethod
    def next_state(cls, values: Values, state: State, probability: float) -> State:
        """Return the sums after a token."""
        decay = values["adaptive_decay"]
        return probability + decay * state[0], 1.0 + decay * state[1]

    def steered(
        self, logits: torch.Tensor, mass: Mass, batch: Rows, states: Sequence[State]
    ) -> torch.Tensor:
        """Return the logits by distance. Shapes: [S, V] -> [S, V]"""
        import torch

        from dovetail_plugins.logits_processors.samplers._mass import numbers

        targets = (one.values["adaptive_target"] for one in batch.rows)
        pairs = zip(targets, states, strict=True)
        aims = [min(max(2.0 * target - s / shares, 0.0), 1.0) for target, (s, shares) in pairs]
        share = mass.weight / mass.total.float()
        distance = (share - numbers(aims, share)).abs_().div_(WIDTH)
        bent = PEAK - SHARPNESS * distance.square() / (1.0 + distance)
        return torch.where(logits > -torch.inf, bent, -torch.inf)
