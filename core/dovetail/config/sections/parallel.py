"""ParallelConfig: how many workers share the model, and who drives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


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
    worker_extension_cls: str | None = flag(
        None, metavar="CLASS", help="class whose methods are added to the worker"
    )
    pipeline_parallel_size: int = flag(
        1, ge=1, short="-pp", help="number of devices that hold one after another of the layers"
    )
    decode_context_parallel_size: int = flag(
        1, ge=1, short="-dcp", help="number of devices that share a request's context when decoding"
    )
    data_parallel_size: int = flag(
        1, ge=1, short="-dp", help="number of engines that each hold the whole model"
    )
    data_parallel_size_local: int | None = flag(
        None, ge=0, short="-dpl", help="number of those engines on this machine"
    )
    data_parallel_rank: int | None = flag(
        None, ge=0, short="-dpn", help="which of those engines this one is"
    )
    data_parallel_start_rank: int | None = flag(
        None, ge=0, short="-dpr", help="first of those engines on this machine"
    )
    data_parallel_address: str | None = flag(
        None, short="-dpa", metavar="HOST", help="machine that leads those engines"
    )
    data_parallel_rpc_port: int | None = flag(
        None, ge=1, le=65535, short="-dpp", help="port on which those engines talk"
    )
    data_parallel_backend: str = flag(
        "mp", kind="data_parallel_backend", short="-dpb", help="how those engines are started"
    )
    data_parallel_hybrid_lb: bool = flag(
        False, help="balance requests within a machine and leave machines to a balancer outside"
    )
    headless: bool = flag(False, help="run this machine's engines without an HTTP server")
    enable_expert_parallel: bool = flag(
        False, help="give every device whole experts instead of a part of each"
    )
    expert_placement_strategy: str = flag(
        "linear", kind="expert_placement", help="which device holds which experts"
    )
    enable_eplb: bool = flag(False, help="move experts between devices as their load changes")
    eplb_config: Mapping[str, Any] = flag(
        {},
        help="how experts are moved: window_size, step_interval, num_redundant_experts, "
        "log_balancedness",
    )
    enable_dbo: bool = flag(
        False, help="run two half batches so that one computes while the other communicates"
    )
    dbo_decode_token_threshold: int = flag(
        32, ge=1, unit="tokens", help="smallest decode step that is halved so"
    )
    dbo_prefill_token_threshold: int = flag(
        512, ge=1, unit="tokens", help="smallest prefill step that is halved so"
    )
    ray_workers_use_nsight: bool = flag(False, help="run Ray's workers under the Nsight profiler")
    max_parallel_loading_workers: int | None = flag(
        None,
        ge=1,
        help="threads that read weight files ahead while tensors are converted",
        default_note="2",
    )
