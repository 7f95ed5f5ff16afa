"""pytest -p support.shared_gpu: engines of several test processes share one GPU.

An engine that is not told how many KV blocks it has takes most of the GPU; here it takes little.
"""

from __future__ import annotations

from dovetail_plugins.workers.cuda import CudaWorker

ROOM_BYTES = 256 << 20


def pytest_configure() -> None:
    """Leave each engine a little room for its KV cache."""
    CudaWorker.free_bytes = lambda self: ROOM_BYTES  # type: ignore[method-assign]
