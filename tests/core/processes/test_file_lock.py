"""One process at a time holds a file lock, and its file goes with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dovetail.processes.file_lock import locked, try_lock


def test_one_holder_at_a_time_and_no_file_is_left(tmp_path: Path) -> None:
    file = tmp_path / "turn.lock"
    num_inside = 0
    most = 0

    async def work() -> None:
        nonlocal num_inside, most
        async with locked(file):
            num_inside += 1
            most = max(most, num_inside)
            with try_lock(file) as is_locked:
                assert not is_locked
            await asyncio.sleep(0.01)
            num_inside -= 1

    async def main() -> None:
        await asyncio.gather(*(work() for _ in range(4)))

    asyncio.run(main())
    assert most == 1
    assert not file.exists()
