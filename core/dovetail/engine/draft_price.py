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
FIRST_PROBE, PROBE_EVERY, PROBE_STEPS = 64, 1024, 6
"""What does not pay is forgotten so many steps after it ceased to, then after twice as many each
time, up to PROBE_EVERY, and drafts are tried for PROBE_STEPS then: steps of a few requests are no
proof. While drafts pay, what steps take without is forgotten every PROBE_EVERY steps."""


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

    __slots__ = ("between", "drafted", "next_probe", "num_steps", "paid", "plain")

    def __init__(self) -> None:
        self.num_steps = 0
        self.drafted, self.plain = _Latest(), _Latest()
        self.between, self.next_probe, self.paid = FIRST_PROBE, PROBE_EVERY, True

    @property
    def pays(self) -> bool | None:
        """Return whether drafts bring more than they cost; None while too few steps tell."""
        if len(self.plain) < PLAIN_STEPS or len(self.drafted) < PROBE_STEPS:
            return None
        return self.drafted.rate > self.plain.rate

    def look_again(self, *, decides: bool) -> None:
        """Forget what is old, when it is time to. `decides`: drafts are left out where they do not
        pay. Mutates: self"""
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
    """What drafts cost an engine, by the number of rows to a factor of two."""

    def __init__(self) -> None:
        self._steps: defaultdict[int, _Steps] = defaultdict(_Steps)

    def note(
        self, num_rows: int, drafts: int, accepted: int, step_s: float, stands_for: int = 1
    ) -> None:
        """Take in a step in which every row decoded: its `drafts`, those made and those verified,
        and how many came true. It stands for so many steps like it. Mutates: self"""
        steps = self._steps[num_rows.bit_length()]
        steps.num_steps += stands_for
        (steps.drafted if drafts else steps.plain).add(num_rows + accepted, step_s)
        steps.look_again(decides=num_rows >= FEW_ROWS)

    def pays(self, num_rows: int) -> bool:
        """Return whether steps of so many rows are to have drafts now."""
        steps = self._steps.get(num_rows.bit_length())
        if steps is None or steps.num_steps < FEW_STEPS:
            return True
        if len(steps.plain) < PLAIN_STEPS:
            return steps.num_steps % PLAIN_EVERY > 0
        return num_rows < FEW_ROWS or steps.pays is not False

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
