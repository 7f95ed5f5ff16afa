"""The limit of a request's reasoning tokens, which the engine enforces
(`structured_output.thinking`)."""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import ThinkingBudget
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.generate.events import SessionPlan


def thinking_budget(num_tokens: int, plan: SessionPlan, tokenizer: Tokenizer) -> ThinkingBudget:
    """Return the budget with which the engine ends the thinking after `num_tokens`. Raises:
    RequestError if this model's end of thinking is unknown."""
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
