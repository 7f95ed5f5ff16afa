"""Dialect: the finish reasons and field names of one endpoint family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    """How an answer ended: the engine's cause ("stop" or "length"), and the content of the answer.

    `is_forced_call`: the request named the function. `is_stop_text`: one of the client's stop
    strings ended it. `is_unfinished`: a call's arguments are incomplete, so it cannot be executed.
    Aborts and errors are not represented: such requests have no finish reason.
    """

    cause: str
    num_calls: int = 0
    is_forced_call: bool = False
    is_stop_text: bool = False
    is_unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """`finish_reason` maps an end to the family's word for it. `field_names` maps chat's field
    names to the family's, for errors from the engine."""

    finish_reason: Callable[[AnswerEnd], str]
    field_names: Mapping[str, str] = field(default_factory=dict)
