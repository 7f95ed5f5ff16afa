"""ThinkingBudget: when the tokens for thinking are used up, the end of the thinking is written.

Sees token ids alone, so it serves models whose markers are one token each. Only the first region of
an answer is bounded. Knows no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.errors import RequestError
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

NAME = "thinking_budget"


class ThinkingBudget(LogitsProcessor):
    """Options of a request: `tokens`, `end_id`, and `start_id`, or null where the prompt has
    already opened the thinking."""

    info = Info(summary="ends thinking after so many tokens (thinking_token_budget)")
    stage = "allow"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, _Row] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request bounds its thinking."""
        return bool(params.logits_processors.get(NAME))

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raises: RequestError for options that are no numbers or outside the vocabulary."""
        options = params.logits_processors[NAME]
        bounds = {"tokens": 1 << 31, "end_id": vocab_size - 1, "start_id": vocab_size - 1}
        for name, most in bounds.items():
            value = options.get(name)
            if value is None and name == "start_id":
                continue
            if type(value) is not int or not 0 <= value <= most:
                raise RequestError(
                    f"{name} must be a whole number from 0 to {most}.",
                    where=f"logits_processors.{NAME}",
                    fix="send thinking_token_budget instead.",
                )

    def add_row(self, tokens: RowTokens) -> None:
        """Keep the live view of the row's tokens."""
        self._rows[tokens.row] = _Row(tokens, tokens.params.logits_processors[NAME])

    def remove_row(self, row: int) -> None:
        """Forget the row."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Leave only the end marker to rows whose budget is used up.

        Shapes: logits [S, V]. Mutates: logits
        """
        for index, row in rows:
            state = self._rows[row]
            if state.is_used_up():
                kept = logits[index, state.end_id].item()
                logits[index] = float("-inf")
                logits[index, state.end_id] = kept if kept > float("-inf") else 0.0


class _Row:
    """Where one answer stands. Looks at every token once."""

    def __init__(self, tokens: RowTokens, options: Mapping[str, Any]) -> None:
        self.end_id: int = options["end_id"]
        self._start_id: int | None = options.get("start_id")
        self._most: int = options["tokens"]
        self._output_ids = tokens.output_ids
        self._num_seen = 0
        self._num_thought = 0
        self._is_inside = self._start_id is None
        self._is_over = False

    def is_used_up(self) -> bool:
        """Return whether the next token must end the thinking. Mutates: self"""
        for token_id in self._output_ids[self._num_seen :]:
            self._num_seen += 1
            self._take(int(token_id))
        return self._is_inside and self._num_thought >= self._most

    def _take(self, token_id: int) -> None:
        if self._is_over:
            return
        if self._is_inside and token_id == self.end_id:
            self._is_inside, self._is_over = False, True
        elif self._is_inside:
            self._num_thought += 1
        elif token_id == self._start_id:
            self._is_inside = True
