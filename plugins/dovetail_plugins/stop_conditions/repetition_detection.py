"""RepetitionDetection: ends an answer whose last tokens are one pattern over and over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stop_condition import StopCondition, Watch

FIELD = "repetition_detection"
MAX_PATTERN = 4096
MAX_COUNT = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionLimits:
    """Patterns of `min_pattern_size` to `max_pattern_size` tokens (0 is off) may occur less than
    `min_count` times in a row. A smallest size of 0 is 1."""

    max_pattern_size: int = field(
        default=0,
        metadata={"help": f"most tokens of a repeated pattern, up to {MAX_PATTERN}; 0 is off"},
    )
    min_pattern_size: int = field(
        default=0, metadata={"help": "fewest tokens of a repeated pattern; 0 is 1"}
    )
    min_count: int = field(
        default=0, metadata={"help": "how often in a row a pattern ends an answer, 2 or more"}
    )


SIZES = tuple(RepetitionLimits.__dataclass_fields__)


class RepetitionDetection(StopCondition):
    """Ends an answer at the last token of the first pattern that is repeated too often.

    Requests send `repetition_detection`, an object with the three names of RepetitionLimits. The
    options are the limits of requests that do not; one that sends a `max_pattern_size` of 0 has
    none. Only generated tokens count, those of the reasoning and of calls among them.
    Source: the API reference of vLLM, RepetitionDetectionParams
    """

    info = Info(summary="ends an answer that repeats a pattern of tokens", source="vLLM's API")
    Options = RepetitionLimits
    finish_reason = "repetition"
    stop_reason = "repetition_detected"
    claims: ClassVar[Mapping[str, str]] = {
        FIELD: "ends an answer that repeats a pattern of max_pattern_size tokens at most, "
        "min_pattern_size at least, min_count times in a row",
    }

    @classmethod
    def verify(cls, params: SamplingParams) -> None:
        """Check the limits. Raises: RequestError if they are invalid"""
        if params.extra_args.get(FIELD) is not None:
            _limits(params.extra_args[FIELD])

    def __init__(self, options: RepetitionLimits) -> None:
        super().__init__(options)
        fault = _range_fault(asdict(options)) or _fit_fault(options)
        if fault is not None:
            where = f"--plugin-options.stop_condition.{FIELD}.{fault[0]}"
            raise ConfigError(fault[1], where=where, fix="see the help of the options.")

    def watch(self, params: SamplingParams) -> Watch | None:
        """Return what follows an answer; None without limits."""
        own = params.extra_args.get(FIELD)
        limits = self.options if own is None else _limits(own)
        return PatternWatch(limits).take if limits.max_pattern_size else None


def _limits(value: Any) -> RepetitionLimits:
    """Return the limits of a request. Raises: RequestError"""
    if not isinstance(value, Mapping):
        raise RequestError(f"must be an object with {', '.join(SIZES)}.", where=FIELD)
    foreign = next((name for name in value if name not in SIZES), None)
    if foreign is not None:
        where = f"{FIELD}.{str(foreign)[:64]}"
        raise RequestError("is unknown.", where=where, fix=f"use {', '.join(SIZES)}.")
    fault = _range_fault(value)
    limits = None if fault else RepetitionLimits(**value)
    if limits is None or (fault := _fit_fault(limits)):
        assert fault is not None
        raise RequestError(fault[1], where=f"{FIELD}.{fault[0]}")
    return limits


def _range_fault(sizes: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return which size is none, and why; None if all are."""
    for name, size in sizes.items():
        most = MAX_COUNT if name == "min_count" else MAX_PATTERN
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= most:
            return name, f"must be an integer from 0 to {most}."
    return None


def _fit_fault(limits: RepetitionLimits) -> tuple[str, str] | None:
    """Return which limit does not fit the others, and why; None if they fit."""
    if limits.min_pattern_size > limits.max_pattern_size:
        return "min_pattern_size", "must not be above max_pattern_size."
    if limits.max_pattern_size and limits.min_count < 2:
        return "min_count", "must be at least 2; a pattern that occurs once is not repeated."
    return None


class PatternWatch:
    """The tokens of one answer, and for each size of a pattern when it must be looked at next.

    A pattern of `size` tokens is there `min_count` times once `size * (min_count - 1)` tokens in a
    row equal the token `size` before them. While fewer do, a size waits until the missing ones have
    come. So the sizes 1 to n cost about (1 + ln n) / (min_count - 1) looks per token.
    """

    def __init__(self, limits: RepetitionLimits) -> None:
        self._last_size = limits.max_pattern_size
        self._count = limits.min_count
        self._tokens: list[int] = []
        self._due: dict[int, list[tuple[int, int]]] = {}
        """Number of tokens -> the sizes to look at then, each with its equal tokens so far."""
        self._enter(max(limits.min_pattern_size, 1))

    def take(self, token_id: int) -> bool:
        """Return whether the tokens now end with a pattern often enough. Mutates: self"""
        self._tokens.append(token_id)
        due = self._due.pop(len(self._tokens), None)
        return due is not None and any([self._look(*one) for one in due])

    def _look(self, size: int, num_equal: int) -> bool:
        tokens, needed = self._tokens, size * (self._count - 1)
        if len(tokens) == size * self._count and size < self._last_size:
            self._enter(size + 1)
        missing, found = max(needed - num_equal, 1), 0
        while found < missing and tokens[~found] == tokens[~found - size]:
            found += 1
        num_equal = min(num_equal + found, needed) if found == missing else found
        self._plan(len(tokens) + max(needed - num_equal, 1), size, num_equal)
        return num_equal == needed

    def _enter(self, size: int) -> None:
        """Have a size looked at once there are tokens enough. Mutates: self"""
        self._plan(size * self._count, size, 0)

    def _plan(self, num_tokens: int, size: int, num_equal: int) -> None:
        self._due.setdefault(num_tokens, []).append((size, num_equal))
