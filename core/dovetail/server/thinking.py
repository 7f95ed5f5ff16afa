"""What a request says of the model's thinking: whether, how hard, and for how many tokens at most.

Templates know thinking by a few names; the budget is kept by the logits processor of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def template_kwargs(body: ChatRequest) -> dict[str, Any]:
    """Return what the template is given: the request's own words, then those of the effort."""
    kwargs = dict(body.chat_template_kwargs or {})
    for name, value in _of_effort(body.reasoning_effort).items():
        kwargs.setdefault(name, value)
    return kwargs


def _of_effort(effort: str | None) -> dict[str, Any]:
    if effort is None:
        return {}
    return {"reasoning_effort": effort} | dict.fromkeys(SWITCHES, effort != "none")


def unused_fields(body: ChatRequest, ignored: Iterable[str]) -> list[str]:
    """Return the ignored names as the client wrote them: an effort is ignored only where the
    template knows none of the names it was given under."""
    own = body.chat_template_kwargs or {}
    added = {_PREFIX + name for name in _of_effort(body.reasoning_effort) if name not in own}
    unused = list(ignored)
    told = [name for name in unused if name not in added]
    if added and added <= set(unused):
        told.append("reasoning_effort")
    return told


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
