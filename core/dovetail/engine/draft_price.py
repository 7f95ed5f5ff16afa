"""DraftPrice: whether drafts pay, by what decoding steps with and without them have taken.

Steps of about as many rows are compared, the latest ones weighing most: with drafts a step brings
more tokens and takes longer.
"""

from __future__ import annotations

from collections import defaultdict, deque

FEW_ROWS = 4
"""With fewer rows what drafts bring differs from one sentence to the next: there each request
decides, by what steps cost."""
LEAST_WORTH, MOST_WORTH = 0.6, 2.0
"""How many tokens a draft must bring while that is not known, and what is asked at most: a few
steps on a busy machine are no proof."""
WINDOW_STEPS = 15
"""The latest steps of a sort that are looked at."""
FEW_STEPS = 48
"""Before so many steps drafts count as paying: the first ones also compile and record."""
PLAIN_EVERY, PLAIN_STEPS = 6, 3
"""Every so many steps goes without drafts until there have been so many without."""
PROBE_EVERY, PROBE_STEPS = 1024, 6
"""What does not pay is forgotten every so many steps, and drafts are tried for so many then."""


class _Latest:
    """The latest steps of a sort. Of their times the lower quartile counts: steps that compile or
    record something take long once, and on a busy machine others take what they would not."""

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
        """Return tokens a second."""
        return sum(self.tokens) / len(self.tokens) / self.step_s

    @property
    def step_s(self) -> float:
        """Return how long a step takes."""
        return sorted(self.seconds)[len(self.seconds) // 4]


class _Steps:
    """Steps of about as many rows."""

    __slots__ = ("drafted", "num_steps", "plain")

    def __init__(self) -> None:
        self.num_steps = 0
        self.drafted, self.plain = _Latest(), _Latest()


class DraftPrice:
    """What drafts cost an engine, by the number of rows to a factor of two."""

    def __init__(self) -> None:
        self._steps: defaultdict[int, _Steps] = defaultdict(_Steps)

    def note(
        self, num_rows: int, drafts: int, accepted: int, step_s: float, stands_for: int = 1
    ) -> None:
        """Take in a step in which every row decoded: its `drafts`, those made and those verified,
        and how many came true. It stands for so many steps like it. Mutates: self"""
        steps = self._steps[num_rows.bit_length()]
        num_probes = steps.num_steps // PROBE_EVERY
        steps.num_steps += stands_for
        (steps.drafted if drafts else steps.plain).add(num_rows + accepted, step_s)
        if steps.num_steps // PROBE_EVERY > num_probes:
            (steps.plain if self.pays(num_rows) else steps.drafted).clear()

    def pays(self, num_rows: int) -> bool:
        """Return whether steps of so many rows are to have drafts now."""
        steps = self._steps.get(num_rows.bit_length())
        if steps is None or steps.num_steps < FEW_STEPS:
            return True
        if len(steps.plain) < PLAIN_STEPS:
            return steps.num_steps % PLAIN_EVERY > 0
        if num_rows < FEW_ROWS:
            return True
        few = len(steps.drafted) < PROBE_STEPS
        return few or steps.drafted.rate > steps.plain.rate

    def least_worth(self, num_rows: int) -> float:
        """Return how many tokens a request's draft must bring in steps of so many rows: what a step
        with drafts takes longer than one without, in steps without. With many rows that is mostly
        what the longest drafts take, and `pays` decides for all."""
        if num_rows >= FEW_ROWS:
            return LEAST_WORTH
        steps = self._steps.get(num_rows.bit_length())
        if steps is None or len(steps.plain) < PLAIN_STEPS or len(steps.drafted) < PROBE_STEPS:
            return LEAST_WORTH
        longer = steps.drafted.step_s / steps.plain.step_s - 1.0
        return min(max(longer, LEAST_WORTH / 2), MOST_WORTH)
