"""Which processors an engine runs on. Set before its threads start: they inherit it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Collection

logger = logging.getLogger(__name__)


def keep_to(processors: Collection[int]) -> None:
    """Pin the calling thread, and threads that it starts later, to these processors.

    An empty set means all of them. Mutates: the calling thread's affinity
    """
    if not processors or sys.platform != "linux":
        return
    os.sched_setaffinity(0, processors)
    logger.info("the engine is limited to the CPUs %s", ", ".join(map(str, processors)))
