"""PredictionDrafter: drafts the answer that a client predicts, and nothing else.

A client that has a file rewritten sends it as `prediction`: most of the answer is then verified,
not drawn one token after another. Source: OpenAI's API reference, predicted outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail_plugins.drafters._predicted import PredictingDrafter


class PredictionDrafter(PredictingDrafter):
    """Without a prediction a request is drawn as without drafts."""

    info = Info(
        summary="drafts the answer that a client predicts in the field prediction",
        source="https://platform.openai.com/docs/guides/predicted-outputs",
    )

    def __init__(self, options: Any, model: ModelSpec, max_draft_tokens: int) -> None:
        super().__init__()

    def propose(self, request_id: str, token_ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        """Return what the prediction says comes next."""
        return self.predicted(request_id, token_ids, max_tokens)
