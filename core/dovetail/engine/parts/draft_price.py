"""DraftPrice: whether drafts pay off, from the durations of decode steps with and without them.

Compares recent steps with a similar number of rows. With drafts a step yields more tokens but takes
longer.
"""

from __future__ import annotations

from collections import defaultdict, deque

FEW_ROWS = 4
"""With fewer rows the worth of drafts varies with the text. Each request then decides for itself,
from step costs."""
LEAST_WORTH, MOST_WORTH = 0.6, 2.0
"""How many tokens a draft must yield: default, and upper limit, since a few steps on a busy machine
prove little."""
WINDOW_STEPS = 15
"""Window: the number of latest steps that count."""
FEW_STEPS = 48
"""Drafts count as paying until this many steps: the first ones also compile and capture graphs."""
PLAIN_EVERY, PLAIN_STEPS = 6, 3
"""Every PLAIN_EVERY-th step runs without drafts until there are PLAIN_STEPS samples."""
FIRST_PROBE, PROBE_EVERY, PROBE_STEPS = 64, 1024, 6
"""If drafts do not pay, retry them for PROBE_STEPS steps, since measurements with few requests are
noisy. The interval starts at FIRST_PROBE and doubles up to PROBE_EVERY steps. While drafts pay,
timings without drafts are discarded every PROBE_EVERY steps."""


class _Latest:
    """The latest steps, with or without drafts. The lower quartile of their times counts: it
    ignores steps that compile something, and outliers on a busy machine."""

    __slots__ = ("seconds", "tokens")

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=WINDOW_STEPS)
        self.tokens: deque[int] = deque(maxlen=WINDOW_STEPS)

    def add(self, tokens: int, step_s: float) -> None:
        self.tokens.append(tokens)
        self.seconds.append(step_s)

    def __len__(self) -> int:
        return len(self.tokens)

    def clear(self) -> None:
        self.tokens.clear()
        self.seconds.clear()

    @property
    def rate(self) -> float:
        """Return tokens per second."""
        return sum(self.tokens) / len(self.tokens) / self.step_s

    @property
    def step_s(self) -> float:
        """Return the typical duration of a step."""
        return sorted(self.seconds)[len(self.seconds) // 4]


class _Steps:
    """Timings of steps with a similar number of rows."""

    __slots__ = ("between", "drafted", "next_probe", "num_steps", "paid", "plain")

    def __init__(self) -> None:
        self.num_steps = 0
        self.drafted, self.plain = _Latest(), _Latest()
        self.between, self.next_probe, self.paid = FIRST_PROBE, PROBE_EVERY, True

    @property
    def pays(self) -> bool | None:
        """Return whether drafts yield more than they cost; None with too few samples."""
        if len(self.plain) < PLAIN_STEPS or len(self.drafted) < PROBE_STEPS:
            return None
        return self.drafted.rate > self.plain.rate

    def look_again(self, *, decides: bool) -> None:
        """Discard old samples when they are due. `decides`: drafts are disabled if they do not pay.
        Mutates: self"""
        pays = self.pays
        if pays is None:
            return
        pays = pays or not decides
        if self.paid and not pays:
            self.between, self.next_probe = FIRST_PROBE, self.num_steps + FIRST_PROBE
        self.paid = pays
        if self.num_steps < self.next_probe:
            return
        if pays:
            self.plain.clear()
            self.next_probe = self.num_steps + PROBE_EVERY
        else:
            self.drafted.clear()
            self.between = min(2 * self.between, PROBE_EVERY)
            self.next_probe = self.num_steps + self.between


class DraftPrice:
    """The cost of drafts in an engine, by number of rows in powers of two."""

    def __init__(self) -> None:
        self._steps: defaultdict[int, _Steps] = defaultdict(_Steps)

    def note(
        self, num_rows: int, drafts: int, accepted: int, step_s: float, stands_for: int = 1
    ) -> None:
        """Record a step in which every row decoded: its `drafts` (made plus verified) and how many
        were accepted. It counts as `stands_for` steps. Mutates: self"""
        steps = self._steps[num_rows.bit_length()]
        steps.num_steps += stands_for
        (steps.drafted if drafts else steps.plain).add(num_rows + accepted, step_s)
        steps.look_again(decides=num_rows >= FEW_ROWS)

    def pays(self, num_rows: int) -> bool:
        """Return whether steps with `num_rows` rows should have drafts now."""
        steps = self._steps.get(num_rows.bit_length())
        if steps is None or steps.num_steps < FEW_STEPS:
            return True
        if len(steps.plain) < PLAIN_STEPS:
            return steps.num_steps % PLAIN_EVERY > 0
        return num_rows < FEW_ROWS or steps.pays is not False

    def least_worth(self, num_rows: int) -> float:
        """Return how many tokens a request's draft must yield with `num_rows` rows. That is the
        extra time of a step with drafts, in units of a step without. With many rows that extra time
        is mostly due to the longest drafts, so `pays` decides for all."""
        if num_rows >= FEW_ROWS:
            return LEAST_WORTH
        steps = self._steps.get(num_rows.bit_length())
        if steps is None or len(steps.plain) < PLAIN_STEPS or len(steps.drafted) < PROBE_STEPS:
            return LEAST_WORTH
        longer = steps.drafted.step_s / steps.plain.step_s - 1.0
        return min(max(longer, LEAST_WORTH / 2), MOST_WORTH)
