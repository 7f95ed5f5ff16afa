"""Adapters added, dropped and evicted under 32 running requests: nothing is lost, nothing is left.

`python -m support.adapter_churn` does it a thousand times.
"""

from __future__ import annotations

from pathlib import Path

from support.adapter_churn import churned
from support.samples import sample_of

ROUNDS = sample_of(240, 40)


def test_nothing_is_lost_and_memory_stays(tmp_path: Path) -> None:
    found = churned(tmp_path, ROUNDS)
    assert len(found.answers) == len(set(found.answers)) == 3
    assert found.num_done > ROUNDS
    assert found.more_kept <= 40  # of 14 that a round loads
    assert found.more_bytes < 12e6
