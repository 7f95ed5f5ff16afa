"""ReasoningBudget: ends a row's reasoning when its token budget is used up.

It finds the markers in the tokens' text, however that is split into tokens, and then allows only
the tokens of the closing words and of the end marker, one after the other. The answer follows. Only
the first reasoning section of an answer is limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.sampling_params import SamplingParams, ThinkingBudget
from dovetail.interfaces.logits import LogitsProcessor, ProcessorContext, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.structured_output import Vocabulary
from dovetail_plugins.logits_processors._ids import verify_ids

if TYPE_CHECKING:
    import torch

MOST_BYTES_PER_CHAR = 4
MOST_LATE_TOKENS = 4
"""How many tokens a character or an end marker that was begun within the budget may still take."""
LEAST_BEGUN = 2
"""The bytes by which an end marker is recognized: "<" may be anything."""


class ReasoningBudget(LogitsProcessor):
    """All rows of a runner with a reasoning budget."""

    info = Info(summary="ends the reasoning after a number of tokens")
    stage = "ban"  # after all that allows tokens: a constraint of the answer, for example
    field = "thinking"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, _Row] = {}

    def set_up(self, context: ProcessorContext) -> None:
        """Note how the vocabulary is read. Mutates: self"""
        self._vocabulary = context.vocabulary

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request limits its reasoning."""
        return params.thinking is not None

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raises: RequestError when the end is written in ids outside the vocabulary."""
        assert params.thinking is not None
        verify_ids(params.thinking.end_ids, vocab_size, "thinking_token_budget")

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row, advancing over the tokens that it already has. Mutates: self"""
        assert tokens.params.thinking is not None
        thinking = tokens.params.thinking
        self._rows[tokens.row] = _Row(tokens.output_ids, thinking, self._vocabulary())

    def remove_row(self, row: int) -> None:
        """Forget a row. Mutates: self"""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Force the next token of the end in rows whose budget is used up.

        Shapes: logits [S, V]
        Mutates: logits
        """
        for index, row in rows:
            token_id = self._rows[row].forced_id()
            if token_id is not None:
                logits[index] = float("-inf")
                logits[index, token_id] = 0.0


class _Row:
    """The state of one answer: before, within, ending, or after its reasoning."""

    def __init__(
        self, output_ids: Sequence[int], budget: ThinkingBudget, vocabulary: Vocabulary
    ) -> None:
        self._output_ids = output_ids
        self._end_ids = budget.end_ids
        self._start, self._end = budget.start.encode(), budget.end.encode()
        self._most = budget.tokens
        self._tokens = vocabulary.tokens
        self._special = {i: text.encode() for text, i in vocabulary.special.items()}
        self._text = b""
        self._num_seen = self._num_thought = self._num_forced = 0
        self._phase = "within" if not budget.start else "before"

    def forced_id(self) -> int | None:
        """Return the token that must come next, or None. Mutates: self"""
        for token_id in self._output_ids[self._num_seen :]:
            self._num_seen += 1
            self._take(int(token_id))
        if not self._must_end():
            return None
        return self._end_ids[min(self._num_forced, len(self._end_ids) - 1)]

    def _must_end(self) -> bool:
        """Return whether the budget is used up. A partial character is finished first, and so is an
        end marker of several tokens that the model writes itself."""
        if self._phase != "within" or self._num_thought < self._most:
            return False
        is_late = self._num_thought >= self._most + MOST_LATE_TOKENS
        return self._num_forced > 0 or is_late or not self._is_in_unit()

    def _is_in_unit(self) -> bool:
        begun = (self._end[:size] for size in range(LEAST_BEGUN, len(self._end)))
        return _is_in_character(self._text) or self._text.endswith(tuple(begun))

    def _take(self, token_id: int) -> None:
        if self._phase == "behind":
            return
        is_forced = self._must_end()
        was_within = self._phase == "within"
        if token_id < len(self._tokens):  # tokens of adapters are never part of markers
            self._text += self._special.get(token_id) or self._tokens[token_id]
        if not was_within:
            self._look_for_start()
        if self._phase == "within" and self._end in self._text:
            self._phase = "behind"
        elif was_within:
            self._num_forced += is_forced
            self._num_thought += 1
            self._text = self._text[-max(len(self._end), MOST_BYTES_PER_CHAR) :]

    def _look_for_start(self) -> None:
        """Enter the reasoning, or skip it if the answer starts without. Mutates: self"""
        begun = self._text.lstrip()
        if begun.startswith(self._start):
            self._phase, self._text = "within", begun[len(self._start) :]
        elif not self._start.startswith(begun):
            self._phase = "behind"


def _is_in_character(text: bytes) -> bool:
    """Return whether the text ends in the middle of a UTF-8 character."""
    for back, byte in enumerate(reversed(text[-3:]), start=1):
        if byte >= 0xC0:
            return back < (4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2)
        if byte < 0x80:
            return False
    return False
