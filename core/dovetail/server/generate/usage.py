"""Tokens counted, in OpenAI's usage object, and when a stream tells them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail.errors import RequestError
from dovetail.server.generate.bodies import (
    CompletionTokensDetails,
    PromptTokensDetails,
    StreamOptions,
    Usage,
)
from dovetail.server.generate.server_state import ServerState
from dovetail.server.generate.streaming import Step

StreamUsage = Literal["never", "at_end", "always"]
"""When the chunks of a stream tell the usage."""


@dataclass(slots=True, kw_only=True)
class UsageCounter:
    """Tokens of an answer so far, prompts of several generations added up."""

    shows_cached: bool = False
    shows_reasoning: bool = False
    prompt_tokens: dict[int, int] = field(default_factory=dict)
    generated_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    reasoning_tokens: dict[int, int] = field(default_factory=dict)

    def note(self, step: Step, which: int = 0) -> None:
        """Record a step of generation `which`. Mutates: self"""
        self.prompt_tokens[which] = step.num_prompt_tokens
        self.generated_tokens[which] = step.num_generated_tokens
        self.cached_tokens[which] = step.num_cached_tokens
        self.reasoning_tokens[which] = step.num_reasoning_tokens

    def usage(self) -> Usage:
        """Return OpenAI's usage object."""
        prompt = sum(self.prompt_tokens.values())
        generated = sum(self.generated_tokens.values())
        fields: dict[str, Any] = {"prompt_tokens_details": None, "completion_tokens_details": None}
        if self.shows_cached:
            cached = sum(self.cached_tokens.values())
            fields["prompt_tokens_details"] = PromptTokensDetails(cached_tokens=cached)
        if self.shows_reasoning:
            fields["completion_tokens_details"] = CompletionTokensDetails(
                reasoning_tokens=sum(self.reasoning_tokens.values())
            )
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=generated,
            total_tokens=prompt + generated,
            **fields,
        )


def stream_usage(
    server: ServerState, is_stream: bool, options: StreamOptions | None
) -> StreamUsage:
    """Return when a stream tells the usage. Raises: RequestError for options without a stream"""
    if options is not None and not is_stream:
        raise RequestError("is only allowed when stream is true.", where="stream_options")
    if server.frontend.enable_force_include_usage:
        return "always"
    if options is None or not options.include_usage:
        return "never"
    return "always" if options.continuous_usage_stats else "at_end"
