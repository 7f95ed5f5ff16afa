"""FeedbackSampler: a sampler whose next step depends on how likely the drawn tokens were.

Its state is two numbers. A request that is preempted finds them again when it returns, by its id;
one that another engine goes on with begins anew.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.logits import RowTokens
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Values

if TYPE_CHECKING:
    import torch

    from dovetail_plugins.logits_processors.samplers._mass import Mass

State = tuple[float, float]
MAX_REMEMBERED = 1 << 16
"""Requests that left, of which most are finished."""


@dataclass(slots=True)
class _Offer:
    """A row's distribution at a position, from which a token was to be drawn there."""

    position: int
    weight: torch.Tensor
    total: torch.Tensor


class FeedbackSampler(Sampler):
    """A row's state changes once for each drawn token, however often its position is computed."""

    stage = "before_draw"
    rank = 1
    is_by_value = False

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._states: dict[int, State] = {}
        self._offers: dict[int, _Offer] = {}
        self._remembered: OrderedDict[str, tuple[int, State]] = OrderedDict()

    @classmethod
    @abstractmethod
    def first_state(cls, values: Values) -> State:
        """Return the state before the first token."""

    @classmethod
    @abstractmethod
    def next_state(cls, values: Values, state: State, probability: float) -> State:
        """Return the state after a token that had this probability, above 0."""

    @abstractmethod
    def steered(
        self, logits: torch.Tensor, mass: Mass, batch: Rows, states: Sequence[State]
    ) -> torch.Tensor:
        """Return the logits to draw from. Shapes: [S, V] -> [S, V]"""

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row, or go on with one that was preempted."""
        super().add_row(tokens)
        count, state = self._remembered.pop(tokens.request_id, (0, None))
        is_known = state is not None and count == len(tokens.output_ids)
        first = self.first_state(self.rows[tokens.row].values)
        self._states[tokens.row] = state if is_known and state is not None else first

    def remove_row(self, row: int) -> None:
        """Forget a row, and remember its state."""
        known = self.rows.get(row)
        if known is not None and known.tokens.request_id:
            self._learn([row])
            count = len(known.tokens.output_ids)
            self._remembered[known.tokens.request_id] = (count, self._states[row])
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        super().remove_row(row)
        self._states.pop(row, None)
        self._offers.pop(row, None)

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the logits to draw from. Shapes: [S, V] -> [S, V]"""
        from dovetail_plugins.logits_processors.samplers._mass import Mass

        numbers = [one.tokens.row for one in batch.rows]
        self._learn(numbers)
        mass = Mass(logits)
        for i, one in enumerate(batch.rows):
            position = len(one.tokens.output_ids)
            self._offers[one.tokens.row] = _Offer(position, mass.weight[i], mass.total[i])
        return self.steered(logits, mass, batch, [self._states[row] for row in numbers])

    def _learn(self, rows: Sequence[int]) -> None:
        """Bring the states of rows up to date with their tokens. Mutates: self"""
        for row in rows:
            offer, known = self._offers.get(row), self.rows[row]
            if offer is None or len(known.tokens.output_ids) <= offer.position:
                continue
            token_id = known.tokens.output_ids[offer.position]
            if token_id < len(offer.weight):
                probability = float(offer.weight[token_id] / offer.total)
                if probability > 0.0:
                    before = self._states[row]
                    self._states[row] = self.next_state(known.values, before, probability)
            del self._offers[row]
