"""PredictionDrafter: drafts the answer that a client predicts, and nothing else.

A client that has a file rewritten sends it as `prediction`: most of the answer is then verified,
not drawn one token after another. Source: OpenAI's API reference, predicted outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.plugin import Info
from dovetail_plugins.drafters._predicted import Predictions


class PredictionDrafter(Drafter):
    """Without a prediction a request is drawn as without drafts."""

    info = Info(
        summary="drafts the answer that a client predicts in the field prediction",
        source="https://platform.openai.com/docs/guides/predicted-outputs",
    )
    capabilities = frozenset({"predictions"})

    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        self._predictions = Predictions()

    def expect(self, request_id: str, num_prompt_tokens: int, token_ids: Sequence[int]) -> None:
        """Take a client's guess of an answer. Mutates: self"""
        self._predictions.expect(request_id, num_prompt_tokens, token_ids)

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return what the prediction says comes next."""
        return self._predictions.propose(request_id, token_ids, max_tokens)

    def forget(self, request_id: str) -> None:
        """Drop the request's prediction."""
        self._predictions.forget(request_id)
