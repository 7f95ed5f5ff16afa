"""What a request says of the model's thinking: whether, how hard, and for how many tokens at most.

Templates know thinking by a few names; the budget is kept by the logits processor of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.text import Markers
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.events import SessionPlan
from dovetail.server.protocol.chat import ChatRequest

PROCESSOR = "thinking_budget"
SWITCHES = ("enable_thinking", "thinking")
"""Names by which chat templates know whether to think."""
_PREFIX = "chat_template_kwargs."


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A request's field that the template is told of under several names, any of which may do."""

    field: str
    kwargs: Mapping[str, Any]


def switch(field: str, is_on: bool) -> Switch:
    """Return the wish to think or not to think."""
    return Switch(field=field, kwargs=dict.fromkeys(SWITCHES, is_on))


def switches_of(body: ChatRequest, others: Sequence[Switch] = ()) -> list[Switch]:
    """Return what a request says of thinking: others that its dialect knows, then the effort."""
    if body.reasoning_effort is None:
        return list(others)
    by_effort = switch("", body.reasoning_effort != "none").kwargs
    kwargs = {"reasoning_effort": body.reasoning_effort, **by_effort}
    return [*others, Switch(field="reasoning_effort", kwargs=kwargs)]


def template_kwargs(body: ChatRequest, switches: Iterable[Switch]) -> dict[str, Any]:
    """Return what the template is given: the request's own words first."""
    kwargs = dict(body.chat_template_kwargs or {})
    for given in switches:
        for name, value in given.kwargs.items():
            kwargs.setdefault(name, value)
    return kwargs


def unused_fields(
    body: ChatRequest, switches: Iterable[Switch], ignored: Iterable[str]
) -> list[str]:
    """Return the ignored names as the client wrote them: a switch is ignored only where the
    template knows none of its names."""
    own = {_PREFIX + name for name in body.chat_template_kwargs or {}}
    unused = list(ignored)
    added: set[str] = set()
    fields: list[str] = []
    for given in switches:
        names = {_PREFIX + name for name in given.kwargs}
        fields += [given.field] if names <= set(unused) else []
        added |= names - own
    return [name for name in unused if name not in added] + fields


def budget_options(
    num_tokens: int, plan: SessionPlan, tokenizer: Tokenizer, loaded: Sequence[str]
) -> dict[str, Any]:
    """Return what the processor needs to end the thinking after so many tokens.

    `loaded` are the names of the processors that the engine has. Raises: RequestError
    """
    where = "thinking_token_budget"
    if plan.reasoning is None:
        raise _refused("no reasoning parser is known for this model.")
    if PROCESSOR not in loaded:
        raise _refused("the logits processor thinking_budget is not loaded.")
    if num_tokens < 0:
        raise RequestError("must be 0 or more.", where=where)
    end = _only_id(plan.reasoning.end, tokenizer)
    start = None if plan.starts_inside else _only_id(plan.reasoning.start, tokenizer)
    return {"tokens": num_tokens, "end_id": end, "start_id": start}


def can_budget(markers: Markers | None, tokenizer: Tokenizer, loaded: Sequence[str]) -> bool:
    """Return whether a budget could be kept for this model."""
    if markers is None or PROCESSOR not in loaded:
        return False
    texts = (markers.start, markers.end)
    return all(len(tokenizer.encode(t, add_special_tokens=False)) == 1 for t in texts)


def _only_id(text: str, tokenizer: Tokenizer) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise _refused(f'this model writes "{text}" in several tokens.')
    return ids[0]


def _refused(why: str) -> RequestError:
    return RequestError(
        f"a thinking budget cannot be kept: {why}",
        where="thinking_token_budget",
        fix="leave it out; max_tokens bounds thinking and answer together.",
        code="unsupported_field",
    )
