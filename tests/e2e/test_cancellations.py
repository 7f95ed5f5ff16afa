"""Requests of every kind, cut off at random moments: the server is then as it was before.

CANCELLED_PER_KIND=1000 cuts each kind a thousand times, where `make test` cuts each five times.
`python benchmarks/cuts.py` cuts 20,000 at the sockets of a server.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from support.cut_kinds import KINDS, NAME
from support.cuts import Holdings, Verdicts, cut_all, settled
from support.whole_app import served_app

pytest.importorskip("dovetail_plugins")
NUM_EACH = int(os.environ.get("CANCELLED_PER_KIND", "5"))
NUM_WARM = 2
SPARE_DESCRIPTORS = 4
"""Threads of the pool that start later, and the descriptors of a process that has been idle."""
SPARE_BYTES = 64 << 20


@pytest.mark.timeout(max(600, 10 * NUM_EACH))
def test_a_server_is_as_before_after_requests_of_every_kind_were_cut_off() -> None:
    async def main() -> tuple[Holdings, Holdings, Verdicts]:
        async with served_app("--max-num-seqs", "16", "--served-model-name", NAME) as app:
            await cut_all(app, seed=1, num_each=NUM_WARM)
            before = await settled(app)
            verdicts = await cut_all(app, seed=2, num_each=NUM_EACH)
            return before, await settled(app, before), verdicts

    before, after, verdicts = asyncio.run(main())
    print(f"{len(KINDS) * NUM_EACH} cuts; before {before}; after {after}; {verdicts.statuses}")
    assert verdicts.faults == []
    assert after.beyond(before) == {}
    assert after.descriptors <= before.descriptors + SPARE_DESCRIPTORS
    assert after.memory_bytes <= before.memory_bytes + SPARE_BYTES
