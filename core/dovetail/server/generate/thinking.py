"""What a request says of the model's thinking: whether, how hard, and for how many tokens at most.

Templates know thinking by a few names; the budget is kept by the engine
(`structured_output.thinking`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.sampling_params import ThinkingBudget
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.generate.chat_body import ChatRequest
from dovetail.server.generate.events import SessionPlan

SWITCHES = ("enable_thinking", "thinking")
"""Names by which chat templates know whether to think."""
_PREFIX = "chat_template_kwargs."


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A request's field that is passed to the template under several names, any of which may do."""

    field: str
    kwargs: Mapping[str, Any]


def switch(field: str, is_on: bool) -> Switch:
    """Return the wish to think or not to think."""
    return Switch(field=field, kwargs=dict.fromkeys(SWITCHES, is_on))


def switches_of(body: ChatRequest, others: Sequence[Switch] = ()) -> list[Switch]:
    """Return what a request says of thinking: others that its dialect knows, then the switches of
    other servers, then the effort."""
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


def template_kwargs(
    body: ChatRequest, switches: Iterable[Switch], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the template is given: the request's own words first, the server's last."""
    kwargs = dict(body.chat_template_kwargs or {})
    for given in switches:
        for name, value in given.kwargs.items():
            kwargs.setdefault(name, value)
    return {**defaults, **kwargs}


def unused_fields(
    body: ChatRequest,
    switches: Iterable[Switch],
    ignored: Iterable[str],
    defaults: Iterable[str] = (),
) -> list[str]:
    """Return the ignored names as the client wrote them: a switch is ignored only where the
    template knows none of its names."""
    own = {_PREFIX + name for name in body.chat_template_kwargs or {}}
    unused = list(ignored)
    added = {_PREFIX + name for name in defaults} - own
    fields: list[str] = []
    for given in switches:
        names = {_PREFIX + name for name in given.kwargs}
        fields += [given.field] if names <= set(unused) else []
        added |= names - own
    return [name for name in unused if name not in added] + fields


def thinking_budget(num_tokens: int, plan: SessionPlan, tokenizer: Tokenizer) -> ThinkingBudget:
    """Return what the engine needs to end the thinking after so many tokens. Raises:
    RequestError where nobody knows how this model ends it."""
    if plan.reasoning is None:
        raise RequestError(
            "no reasoning parser is known for this model, so its reasoning cannot be limited.",
            where="thinking_token_budget",
            fix="leave it out; max_tokens limits reasoning and answer together.",
            code="unsupported_field",
        )
    end = plan.reasoning.end
    return ThinkingBudget(
        tokens=num_tokens,
        end=end,
        end_ids=tuple(tokenizer.encode(end, add_special_tokens=False)),
        start="" if plan.starts_inside else plan.reasoning.start,
    )
