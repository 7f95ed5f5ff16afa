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
        1,
        ge=1,
        short="-tp",
        help="number of devices over which each layer is divided (tensor parallelism)",
    )
    distributed_executor_backend: str | None = flag(
        None,
        kind="executor",
        help="how worker processes are started and driven",
        default_note="uni, the worker inside the engine process, for one rank; mp, a process for "
        "each, for more",
    )
    communicator: str = flag(
        "auto",
        kind="communicator",
        help="how ranks exchange tensors",
        default_note="shared memory between the CPUs of one machine, gloo between other CPUs, "
        "NCCL between GPUs",
    )
    disable_custom_all_reduce: bool = flag(
        False, help="let ranks exchange tensors by the libraries that torch has, gloo and NCCL"
    )
    worker_cls: str = flag("auto", kind="worker", help="worker that runs the model on one device")
    worker_extension_cls: str | None = flag(
        None,
        metavar="CLASS",
        help="class whose methods are added to every rank's worker, for collective_rpc: "
        "package.module.Class or file.py:Class",
    )
    pipeline_parallel_size: int = flag(
        1,
        ge=1,
        short="-pp",
        help="number of pipeline stages: devices that each hold a part of the layers",
    )
    pipeline_layer_split: str | None = flag(
        None,
        metavar="N,N",
        help="number of layers of each pipeline stage, by comma",
        default_note="as even as can be",
    )
    decode_context_parallel_size: int = flag(
        1,
        ge=1,
        short="-dcp",
        help="number of devices, of the tensor-parallel ones, over which a request's KV cache is "
        "divided by position (context parallelism)",
    )
    data_parallel_size: int = flag(
        1,
        ge=1,
        short="-dp",
        help="number of engine replicas that each hold the whole model (data parallelism)",
    )
    data_parallel_size_local: int | None = flag(
        None, ge=0, short="-dpl", help="number of data-parallel engines on this machine"
    )
    data_parallel_rank: int | None = flag(
        None, ge=0, short="-dpn", help="data-parallel rank of this engine"
    )
    data_parallel_start_rank: int | None = flag(
        None, ge=0, short="-dpr", help="lowest data-parallel rank on this machine"
    )
    data_parallel_address: str | None = flag(
        None,
        short="-dpa",
        metavar="HOST",
        help="address of the machine whose server the engines of all machines stand behind",
    )
    data_parallel_rpc_port: int | None = flag(
        None,
        ge=1,
        le=65535,
        short="-dpp",
        help="port at which engines of other machines come to the server",
        default_note="29550",
    )
    data_parallel_secret: str | None = flag(
        None,
        secret=True,
        metavar="TEXT",
        help="what engines of other machines and their server prove to each other; better given as "
        "the variable DOVETAIL_DATA_PARALLEL_SECRET",
    )
    data_parallel_join_timeout: float = flag(
        600.0,
        ge=0,
        unit="seconds",
        help="how long a server waits for the engines of other machines, and they for it; with 0 "
        "it begins without those that are missing, which may join while it runs",
    )
    data_parallel_backend: str = flag(
        "mp",
        kind="data_parallel_backend",
        short="-dpb",
        help="how engine replicas are started",
    )
    data_parallel_router: str = flag(
        "prefix_aware",
        kind="router",
        help="which of several engines a request goes to",
    )
    data_parallel_hybrid_lb: bool = flag(
        False,
        short="-dph",
        help="balance requests within each machine; an external load balancer distributes them "
        "over machines",
    )
    headless: bool = flag(False, help="run only this machine's engines, without an HTTP server")
    join: str | None = flag(
        None,
        metavar="HOST:PORT",
        help="run an engine for the server that listens at this address for engines of other "
        "machines (--data-parallel-address), with the server's model and flags",
    )
    enable_expert_parallel: bool = flag(
        False,
        short="-ep",
        help="place whole experts on each device of all engines of this server instead of a part "
        "of every expert (expert parallelism)",
    )
    all2all_backend: str = flag(
        "allgather_reducescatter",
        kind="all2all",
        help="how engines exchange tokens with --enable-expert-parallel",
    )
    expert_placement_strategy: str = flag(
        "linear",
        kind="expert_placement",
        help="which device holds which experts, with --enable-expert-parallel",
    )
    enable_eplb: bool = flag(
        False,
        help="move experts between devices as their load changes, with --enable-expert-parallel",
    )
    eplb_config: Mapping[str, Any] = flag(
        {},
        help="how experts move: every step_interval (3000) steps by how often each was picked in "
        "the last window_size (1000); num_redundant_experts (0) more places for copies; "
        "log_balancedness logs how even the loads were",
    )
    enable_dbo: bool = flag(
        False,
        help="dual batch overlap: run two half batches of a large step, so that one computes while "
        "the other's tensors are exchanged between ranks",
    )
    dbo_decode_token_threshold: int = flag(
        32,
        ge=1,
        unit="tokens",
        help="with --enable-dbo, the minimum number of tokens of a decode step that is split in "
        "two half batches",
    )
    dbo_prefill_token_threshold: int = flag(
        512,
        ge=1,
        unit="tokens",
        help="with --enable-dbo, the minimum number of tokens of a step with prompts in it that is "
        "split in two half batches",
    )
    ray_workers_use_nsight: bool = flag(False, help="run Ray's workers under the Nsight profiler")
    max_parallel_loading_workers: int | None = flag(
        None,
        ge=1,
        help="ranks that load their weights at the same time, and threads of each that read "
        "weight files ahead",
        default_note="all ranks, with 2 threads each",
    )
