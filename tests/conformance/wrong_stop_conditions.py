"""Stop conditions that each break one clause of the kit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stop_condition import StopCondition, Watch


class RightCondition(StopCondition):
    """Keeps every clause: ends an answer with its seventh token of one id."""

    info = Info(summary="a test's own")
    finish_reason = "seven"
    stop_reason = "seven_times"
    claims: ClassVar[Mapping[str, str]] = {"seventh": "the token id"}

    @classmethod
    def verify(cls, params: SamplingParams) -> None:
        value = params.extra_args.get("seventh", 0)
        if not isinstance(value, int) or value < 0:
            raise RequestError("must be a token id.", where="seventh")

    def watch(self, params: SamplingParams) -> Watch | None:
        wanted = params.extra_args.get("seventh")
        found: list[bool] = []

        def take(token_id: int) -> bool:
            found.append(token_id == wanted)
            return sum(found) == 7

        return None if wanted is None else take


class LyingCondition(RightCondition):
    """Calls its end the model's own."""

    finish_reason = "stop"


class DemandingCondition(RightCondition):
    """Wants its field from everybody."""

    @classmethod
    def verify(cls, params: SamplingParams) -> None:
        if "seventh" not in params.extra_args:
            raise RequestError("is missing.", where="seventh")


class TrustingCondition(RightCondition):
    """Fails on other values."""

    @classmethod
    def verify(cls, params: SamplingParams) -> None:
        assert params.extra_args.get("seventh", 0) >= 0


class SharingCondition(RightCondition):
    """Counts the tokens of all answers together."""

    num = 0

    def watch(self, params: SamplingParams) -> Watch | None:
        wanted = params.extra_args.get("seventh")

        def take(token_id: int) -> bool:
            self.num += token_id == wanted
            return self.num % 7 == 0

        return None if wanted is None else take
