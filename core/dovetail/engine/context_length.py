"""Checks of a request against the context length, with the same error texts everywhere."""

from __future__ import annotations

from dovetail.errors import RequestError

PROMPT = "prompt"
"""The parameter that errors about the prompt name; chat servers replace it by "messages"."""


def context_length(max_model_tokens: int, *, answers: bool = True) -> str:
    """Return a description of the context length. `answers`: tokens are generated after the prompt
    and count too."""
    shared = ", for prompt and answer together" if answers else ""
    return f"this model's maximum context length is {max_model_tokens} tokens{shared}"


def room_for_answer(num_prompt_tokens: int, max_model_tokens: int) -> int:
    """Return how many tokens of the context the prompt leaves. Raises: RequestError if none"""
    if not num_prompt_tokens:
        raise RequestError("the prompt has no tokens.", where=PROMPT, fix="send some text.")
    if num_prompt_tokens >= max_model_tokens:
        raise prompt_too_long(
            num_prompt_tokens,
            context_length(max_model_tokens),
            "set truncate_prompt_tokens to -1, or start with a larger --max-model-len",
        )
    return max_model_tokens - num_prompt_tokens


def verify_pooled(num_prompt_tokens: int, max_model_tokens: int) -> None:
    """Check the length of a prompt that is only pooled. Raises: RequestError if too long"""
    if not num_prompt_tokens:
        raise RequestError("the prompt has no tokens.", where=PROMPT, fix="send some text.")
    if num_prompt_tokens > max_model_tokens:
        raise prompt_too_long(
            num_prompt_tokens,
            context_length(max_model_tokens, answers=False),
            "set truncate_prompt_tokens to -1, or start with a larger --max-model-len",
        )


def max_tokens_within(room: int, max_tokens: int | None, min_tokens: int) -> int:
    """Return how many tokens an answer may have. Raises: RequestError if `min_tokens` do not fit"""
    if min_tokens > room:
        raise RequestError(f"only {room} tokens of the context are left.", where="min_tokens")
    return room if max_tokens is None else min(max_tokens, room)


def prompt_too_long(num_tokens: int, limit: str, fix: str) -> RequestError:
    """Return the error for a prompt over a limit. `fix` is an alternative to a shorter prompt."""
    return RequestError(
        f"the prompt has {num_tokens} tokens; {limit}.",
        where=PROMPT,
        fix=f"shorten the prompt, {fix}.",
        code="context_length_exceeded",
    )
