"""The limit of a request's reasoning tokens, which the engine enforces
(`structured_output.thinking`)."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import ThinkingBudget
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.events import SessionPlan
from dovetail.server.generate.model_text import ModelText

WHERE = "thinking_token_budget"
FIX = "leave it out; max_tokens limits reasoning and answer together."


def thinking_limit(num_tokens: int, plan: SessionPlan, text: ModelText) -> ThinkingBudget:
    """Return the budget of an answer in a model's text. Raises: RequestError, as `thinking_budget`,
    and if a token of an adapter marks the reasoning"""
    text.check_structured_output(WHERE)
    tokenizer, message = text.vocabulary.tokenizer, text.frontend.reasoning_budget_message
    budget = thinking_budget(num_tokens, plan, tokenizer, message)
    marks = (*budget.end_ids, *tokenizer.encode(budget.start, add_special_tokens=False))
    if max(marks, default=0) >= text.engine.vocabularies.own.num_tokens:
        raise RequestError(
            "a token that the adapter adds marks the reasoning, so it cannot be limited.",
            where=WHERE,
            fix=FIX,
            code="unsupported_field",
        )
    return budget


def without_unheard_budget(
    body: ChatRequest, plan: SessionPlan, text: ModelText, names: Mapping[str, str]
) -> tuple[ChatRequest, list[str]]:
    """Return the body without a budget in another server's words, which is a hint, if thinking
    cannot be limited here; and what is ignored. `names` are the fields as sent."""
    can_limit = plan.reasoning is not None and text.engine.constraint_compiler is not None
    if can_limit or body.thinking_token_budget is None or WHERE not in names:
        return body, []
    return body.model_copy(update={WHERE: None}), [names[WHERE]]


def thinking_budget(
    num_tokens: int, plan: SessionPlan, tokenizer: Tokenizer, message: str = ""
) -> ThinkingBudget:
    """Return the budget with which the engine ends the thinking after `num_tokens`, with closing
    words. Raises: RequestError if this model's end of thinking is unknown."""
    if plan.reasoning is None:
        raise RequestError(
            "no reasoning parser is known for this model, so its reasoning cannot be limited.",
            where=WHERE,
            fix=FIX,
            code="unsupported_field",
        )
    end = plan.reasoning.end
    return ThinkingBudget(
        tokens=num_tokens,
        end=end,
        end_ids=tuple(tokenizer.encode(message + end, add_special_tokens=False)),
        start="" if plan.starts_inside else plan.reasoning.start,
    )
