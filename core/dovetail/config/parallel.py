"""ParallelConfig: how many workers share the model, and who drives them."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Workers."""

    tensor_parallel_size: int = flag(
        1, ge=1, short="-tp", help="number of devices over which every layer is divided"
    )
    distributed_executor_backend: str | None = flag(
        None,
        kind="executor",
        help="how worker processes are started and driven",
        default_note="uni, the worker inside the engine process",
    )
    worker_cls: str = flag("auto", kind="worker", help="worker that runs the model on one device")
