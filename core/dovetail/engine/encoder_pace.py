"""EncoderPace: how much of an encoder's pass a step computes while answers are drawn.

A pass of a large image takes as long as many steps of the text model. Divided over steps it gets
in each about the time that the step takes without it: answers go on at half their speed, and the
image waits for about twice the time of its pass. Where more requests wait than are answered it gets
so many times more: what keeps many waiting is not held up for a few. Answers do not depend on it.
"""

from __future__ import annotations

from collections import deque

from dovetail.interfaces.step import StepPlan

FIRST_SHARE = 1 / 16
"""How much of a pass a step computes while nobody knows how long it takes."""
LEAST_SHARE = 1 / 32
"""A pass is divided over no more steps than this says."""
WINDOW_STEPS = 15
"""The latest steps without an encoder that are looked at."""


class EncoderPace:
    """The times of one engine's steps, with a piece of a pass in them and without."""

    def __init__(self) -> None:
        self._usual_s: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._row_s: dict[str, float] = {}
        self._key = ""
        self._spent_s = 0.0

    def note(self, plan: StepPlan, step_s: float) -> None:
        """Take in what a step took. Mutates: self"""
        if not plan.encode:
            if not plan.new_rows and all(row.samples for row in plan.rows):
                self._usual_s.append(step_s)
            return
        (piece, *others) = plan.encode
        if others or piece.share == 1:
            return  # the positions of a prompt may be in it too
        if piece.key != self._key:
            self._key, self._spent_s = piece.key, 0.0
        # All pieces so far: one alone is so many blocks, and blocks are few.
        self._spent_s += max(0.0, step_s - self._step_s())
        self._row_s[piece.kind] = self._spent_s / (piece.share * piece.num_rows)

    def share(self, kind: str, num_rows: int, *, weight: float = 1.0) -> float:
        """Return how much of a content's pass the next step computes, up to 1. `weight` is how many
        requests wait for each that is answered; less than one counts as one."""
        row_s, step_s, weight = self._row_s.get(kind), self._step_s(), max(1.0, weight)
        if row_s is None or not step_s:
            return min(1.0, weight * FIRST_SHARE)
        pass_s, given_s = row_s * num_rows, weight * step_s
        return max(LEAST_SHARE, given_s / pass_s) if given_s < pass_s else 1.0

    def _step_s(self) -> float:
        """Return how long a step takes without an encoder, 0 where that is not known."""
        return sorted(self._usual_s)[len(self._usual_s) // 2] if self._usual_s else 0.0
