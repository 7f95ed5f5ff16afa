"""EncoderSplit: how much of an encoder pass a step computes while requests decode.

Encoding a large image takes as long as many decode steps. Each step therefore gets a piece that
takes about as long as the step without it: decoding runs at half speed, and the image waits about
twice the time of its pass. If more requests wait than decode, the piece grows by that ratio, so
that a few do not hold up many. The split does not affect the results.
"""

from __future__ import annotations

from collections import deque

from dovetail.interfaces.data.step import StepPlan

FIRST_SHARE = 1 / 16
"""The share of a pass per step until its duration is known."""
LEAST_SHARE = 1 / 32
"""The minimum share per step, which limits the number of steps of a pass."""
WINDOW_STEPS = 15
"""Window: the number of latest steps without an encoder that count."""


class EncoderSplit:
    """Durations of one engine's steps, with and without a piece of an encoder pass."""

    def __init__(self) -> None:
        self._usual_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._row_s: dict[str, float] = {}
        self._key = ""
        self._spent_s = 0.0

    def note(self, plan: StepPlan, step_s: float) -> None:
        """Record a step's duration. Mutates: self"""
        if not plan.encode:
            if not plan.new_rows and all(row.samples for row in plan.rows):
                self._usual_s.append(step_s)
            return
        (piece, *others) = plan.encode
        if others or piece.share == 1:
            return  # the step may also include prompt positions
        if piece.key != self._key:
            self._key, self._spent_s = piece.key, 0.0
        # Sum over all pieces so far, since one piece is a whole number of the encoder's few blocks.
        self._spent_s += max(0.0, step_s - self._step_s())
        self._row_s[piece.kind] = self._spent_s / (piece.share * piece.num_rows)

    def share(self, kind: str, num_rows: int, *, weight: float = 1.0) -> float:
        """Return the share of a medium's encoder pass for the next step, at most 1. `weight` is the
        number of waiting requests per running one, at least 1."""
        row_s, step_s, weight = self._row_s.get(kind), self._step_s(), max(1.0, weight)
        if row_s is None or not step_s:
            return min(1.0, weight * FIRST_SHARE)
        pass_s, given_s = row_s * num_rows, weight * step_s
        return max(LEAST_SHARE, given_s / pass_s) if given_s < pass_s else 1.0

    def _step_s(self) -> float:
        """Return the median duration of a step without an encoder, 0 if unknown."""
        return sorted(self._usual_s)[len(self._usual_s) // 2] if self._usual_s else 0.0
