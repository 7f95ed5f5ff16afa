"""Engines that share their experts: joining the ranks of other engines, and the token exchange.

Each process is one rank, and has one exchange for all its layers.
"""

from __future__ import annotations

from pathlib import Path

from dovetail import registry
from dovetail.interfaces.all2all import All2All
from dovetail.interfaces.data.spec import RunSpec
from dovetail.parallel.groups import data_group, join_engines
from dovetail.parallel.halves import HalvesAll2All, alternates

MEETING = "meeting"
_opened: list[All2All] = []


def join(run: RunSpec) -> None:
    """Join the ranks of the other engines that share experts with this one, if there are any.
    Blocks until all have joined. Raises: ConfigError. Mutates: this process's groups"""
    if run.rank.data_size == 1:
        return
    assert run.communicator is not None and run.all2all is not None, "resolved with the ranks"
    address = f"{(Path(run.engines_folder) / MEETING).as_uri()}#engines"
    device = run.device if run.device == "cpu" else f"{run.device}:{run.rank.local_rank}"
    hands_over = alternates(run)
    join_engines(
        run.rank,
        communicator=run.communicator,
        address=address,
        device=device,
        hands_over=hands_over,
    )
    group = data_group(run.rank).joined()
    all2all: All2All = registry.make(run.all2all, group)
    if hands_over:
        all2all = HalvesAll2All((all2all, registry.make(run.all2all, group)))
    _opened[:] = [all2all]


def exchange() -> All2All | None:
    """Return the token exchange of this process's layers, or None if engines share no experts."""
    return _opened[0] if _opened else None
