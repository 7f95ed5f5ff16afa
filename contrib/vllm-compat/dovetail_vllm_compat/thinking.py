"""Reasoning parsers between two tokens, from which most plugin files derive theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail_vllm_compat.bases import Growth, ReasoningParser
from dovetail_vllm_compat.protocol import DeltaMessage


class BaseThinkingReasoningParser(ReasoningParser):
    """Reasoning stands between `start_token` and `end_token`, both single tokens."""

    opens_implicitly = False
    """Whether text that neither token precedes is reasoning."""

    @property
    def start_token(self) -> str:
        """Return the token that opens the reasoning."""
        raise NotImplementedError(f"{type(self).__name__}.start_token")

    @property
    def end_token(self) -> str:
        """Return the token that ends the reasoning."""
        raise NotImplementedError(f"{type(self).__name__}.end_token")

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        if not self.start_token or not self.end_token:
            raise ValueError("start_token and end_token must be defined")
        ids = [self.vocab.get(token) for token in (self.start_token, self.end_token)]
        self.start_token_id, self.end_token_id = ids
        if None in ids:
            raise RuntimeError(
                f"{self.start_token} and {self.end_token} are not both tokens of this model"
            )

    @property
    def reasoning_start_str(self) -> str | None:
        """Return the text that opens the reasoning."""
        return self.start_token

    @property
    def reasoning_end_str(self) -> str | None:
        """Return the text that ends the reasoning."""
        return self.end_token

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Return whether the last of the two tokens is the one that ends the reasoning."""
        if self.end_token_id not in input_ids:  # most often, and much faster than the loop
            return False
        for token_id in reversed(input_ids):
            if token_id in (self.start_token_id, self.end_token_id):
                return token_id == self.end_token_id
        return False

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Sequence[int]
    ) -> bool:
        """Return whether the token that ends the reasoning has just come."""
        return self.end_token_id in delta_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Return the tokens behind the end of the reasoning."""
        if self.end_token_id not in input_ids:
            return []
        return input_ids[input_ids.index(self.end_token_id) + 1 :]

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Return (reasoning, content): without an end, all is reasoning."""
        before, opening, behind = model_output.partition(self.start_token)
        text = behind if opening else before
        reasoning, _, content = text.partition(self.end_token)
        return reasoning, content or None

    def extract_reasoning_content(
        self, model_output: str, request: Any
    ) -> tuple[str | None, str | None]:
        """Return (reasoning, content), by the method's older name."""
        return BaseThinkingReasoningParser.extract_reasoning(self, model_output, request)

    def extract_reasoning_streaming(self, *growth: Any, **named: Any) -> DeltaMessage | None:
        """Return which part of the new text is reasoning and which is content."""
        new = Growth(*growth, **named)
        if list(new.delta_token_ids) in ([self.start_token_id], [self.end_token_id]):
            return None
        if self.end_token_id in new.previous_token_ids:
            return DeltaMessage(content=new.delta_text)
        before, opening, behind = new.delta_text.partition(self.start_token)
        text = behind if opening else before
        if self.end_token_id in new.delta_token_ids:
            reasoning, _, content = text.partition(self.end_token)
            return DeltaMessage(reasoning=reasoning or None, content=content or None)
        if opening or self.opens_implicitly or self.start_token_id in new.previous_token_ids:
            return DeltaMessage(reasoning=text)
        return DeltaMessage(content=new.delta_text)

    def extract_reasoning_content_streaming(
        self, *growth: Any, **named: Any
    ) -> DeltaMessage | None:
        """Return the same, by the method's older name."""
        return BaseThinkingReasoningParser.extract_reasoning_streaming(self, *growth, **named)


class DeepSeekR1ReasoningParser(BaseThinkingReasoningParser):
    """Reasoning up to </think>, whether <think> opens it or not."""

    opens_implicitly = True
    start_token = "<think>"  # type: ignore[assignment]
    end_token = "</think>"  # type: ignore[assignment]


class Qwen3ReasoningParser(DeepSeekR1ReasoningParser):
    """Reasoning between <think> and </think>; an answer without </think> is content."""

    opens_implicitly = False

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Return (reasoning, content)."""
        if self.end_token not in model_output:
            return None, model_output
        return super().extract_reasoning(model_output, request)

    extract_reasoning_content = extract_reasoning


class IdentityReasoningParser(ReasoningParser):
    """All is content."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Return True: there is no reasoning to wait for."""
        return True

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Return all tokens."""
        return input_ids

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Return all as content."""
        return None, model_output

    def extract_reasoning_streaming(self, *growth: Any, **named: Any) -> DeltaMessage | None:
        """Return all as content."""
        new_text = Growth(*growth, **named).delta_text
        return DeltaMessage(content=new_text) if new_text else None
