"""Dialect: the words in which one family of endpoints speaks of a generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEnd:
    """Why an answer ended: the engine's cause, "stop" or "length", and what the answer held.

    `is_forced_call`: the request named the function. `is_stop_text`: a stop text of the client's
    ended it. `is_unfinished`: the arguments of a call are not whole, so it cannot be made. Aborts
    and errors never come here: they end a request without a reason.
    """

    cause: str
    num_calls: int = 0
    is_forced_call: bool = False
    is_stop_text: bool = False
    is_unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """`finish_reason` is the family's word for an end; `field_names` are its names of chat's
    fields, by which errors of the engine name what the client sent."""

    finish_reason: Callable[[AnswerEnd], str]
    field_names: Mapping[str, str] = field(default_factory=dict)
