"""The variables of chat templates for thinking: whether to think, and how hard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.server.generate.body.chat import ChatRequest

SWITCHES = ("enable_thinking", "thinking")
"""The variables that turn thinking on or off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A request field that is passed to the template under several names; one match is enough."""

    field: str
    kwargs: Mapping[str, Any]


def switch(field: str, is_on: bool) -> Switch:
    """Return a switch that turns thinking on or off."""
    return Switch(field=field, kwargs=dict.fromkeys(SWITCHES, is_on))


def switches_of(body: ChatRequest, others: Sequence[Switch] = ()) -> list[Switch]:
    """Return a request's thinking switches: its dialect's own, then other servers', then the
    effort."""
    others = list(others)
    if body.enable_thinking is not None:
        others.append(switch("enable_thinking", body.enable_thinking))
    if body.thinking is not None and body.thinking.type in ("enabled", "disabled"):
        others.append(switch("thinking", body.thinking.type == "enabled"))
    if body.reasoning_effort is None:
        return others
    by_effort = switch("", body.reasoning_effort != "none").kwargs
    kwargs = {"reasoning_effort": body.reasoning_effort, **by_effort}
    return [*others, Switch(field="reasoning_effort", kwargs=kwargs)]
