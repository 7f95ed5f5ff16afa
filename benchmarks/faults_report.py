"""What `benchmarks.faults` has seen: its record in a file, and the table of it."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

NUM_AFTER = 6
"""New requests after each fault."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one fault came to."""

    round: str = ""
    target: str = ""
    fault: str = ""
    under_way: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    notice_s: float | None = None
    health: str = ""
    gone_s: float | None = None
    answered_after: int = 0
    never_ended: int = 0

    @property
    def stayed(self) -> bool:
        """Return whether a process that was given up was there long after."""
        return self.notice_s is not None and self.gone_s is None


@dataclass(slots=True, kw_only=True)
class Left:
    """What a round left behind, and the exit statuses of the head and the headless processes."""

    round: str = ""
    statuses: list[int | None] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)


def row_of(all_seen: Sequence[Seen]) -> str:
    """Return a row of the table."""
    ends: Counter[str] = Counter()
    for seen in all_seen:
        ends.update(seen.ends)
    under_way = sum(seen.under_way for seen in all_seen)
    how = ", ".join(f"{count} {word}" for word, count in ends.most_common())
    said = Counter(seen.health for seen in all_seen).most_common(1)[0][0]
    after = f"{sum(s.answered_after for s in all_seen)} of {NUM_AFTER * len(all_seen)}"
    cells = [
        all_seen[0].target, all_seen[0].fault, str(len(all_seen)), f"{under_way}: {how}",
        f"`{said}` {_times(s.notice_s for s in all_seen)}", _times(s.gone_s for s in all_seen),
        after, str(sum(s.never_ended for s in all_seen)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _times(found: Iterable[float | None]) -> str:
    """Return the median and the longest of times in words."""
    times = [one for one in found if one is not None]
    return f"{statistics.median(times):.2f} s (most {max(times):.2f})" if times else "-"


HEAD = (
    "| process | fault | times | requests under way | /health after | gone after | "
    "new requests answered | never ended |\n|---|---|---|---|---|---|---|---|"
)


def report(found: Sequence[Seen | Left], rounds: Sequence[str]) -> bool:
    """Print the table and what was left over; return whether that is nothing."""
    by_fault: dict[tuple[str, str], list[Seen]] = {}
    for one in found:
        if isinstance(one, Seen):
            by_fault.setdefault((one.target, one.fault), []).append(one)
    print(HEAD)
    for rows in by_fault.values():
        print(row_of(rows))
    lefts = [one for one in found if isinstance(one, Left)]
    for name in rounds:
        own = [one for one in lefts if one.round == name]
        statuses = Counter(tuple(one.statuses) for one in own).most_common()
        told = "; ".join(f"{list(one)} {count} times" for one, count in statuses)
        print(f"round {name}: {len(own)} times; exit statuses of head and headless: {told}")
    parts = {name: [x for one in lefts for x in getattr(one, name)] for name in LEFT}
    for name, things in parts.items():
        print(f"left {name}: {len(things)} {things[:3] if things else ''}")
    all_seen = [one for rows in by_fault.values() for one in rows]
    stayed = [f"{one.target} {one.fault}" for one in all_seen if one.stayed]
    print(f"stayed until the server ended: {len(stayed)} {stayed[:3] if stayed else ''}")
    return not (sum(one.never_ended for one in all_seen) or stayed or any(parts.values()))


LEFT = ("orphans", "files", "segments")


def read_record(path: Path | None) -> list[Seen | Left]:
    """Return what earlier runs have found."""
    if path is None or not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Left(**one) if "statuses" in one else Seen(**one) for one in lines]


def add_to(path: Path, found: Sequence[Seen | Left]) -> None:
    """Add what was seen to a record."""
    with path.open("a") as file:
        file.writelines(json.dumps(asdict(one)) + "\n" for one in found)
