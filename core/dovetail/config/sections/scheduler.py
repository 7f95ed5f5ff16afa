"""SchedulerConfig: how much a step computes, and in which order requests run."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Steps and queue."""

    max_num_batched_tokens: int | None = flag(
        None,
        ge=1,
        unit="tokens",
        help="maximum number of tokens computed in one step",
        default_note="256 on CPUs, 2048 on GPUs",
    )
    max_num_seqs: int | None = flag(
        None,
        ge=1,
        unit="requests",
        help="maximum number of requests that run at the same time",
        default_note="64 on CPUs, 256 on GPUs",
    )
    performance_mode: str = flag(
        "balanced",
        kind="performance_mode",
        help="which sizes max-num-batched-tokens and max-num-seqs have where they are not given",
    )
    enable_chunked_prefill: bool = flag(
        True, help="split long prompts over several steps, so that other requests are not held up"
    )
    long_prefill_token_threshold: int = flag(
        0,
        ge=0,
        unit="tokens",
        help="maximum number of prompt tokens of one request in one step; 0 means no limit",
    )
    scheduling_policy: str = flag(
        "fcfs", kind="scheduling_policy", help="order in which waiting requests start"
    )
    scheduler_cls: str = flag("continuous", kind="scheduler", help="scheduler that plans the steps")
    async_scheduling: bool | None = flag(
        None,
        help="plan the next step while the device still runs this one",
        default_note="on a GPU, unless it drafts",
    )
    max_num_queued_reqs: int | None = flag(
        None,
        ge=1,
        unit="requests",
        help="maximum number of waiting requests; further ones are answered with status 503 at "
        "once",
        default_note="four times max-num-seqs",
    )
    max_num_partial_prefills: int | None = flag(
        None,
        ge=1,
        unit="requests",
        help="maximum number of prompts that are prefilled in parts at the same time; others wait",
        default_note="no limit",
    )
    max_long_partial_prefills: int | None = flag(
        None,
        ge=1,
        unit="requests",
        help="maximum number of prompts longer than long-prefill-token-threshold (without one: "
        "longer than a step) that are prefilled in parts at the same time; shorter prompts "
        "may overtake those that wait",
        default_note="no limit",
    )
    cuda_graph_sizes: tuple[str, ...] = flag(
        (),
        metavar="N",
        aliases=("--CUDA-graph-sizes",),
        help="batch sizes for which decoding steps are captured as CUDA graphs, or recorded on "
        "a CPU; on a GPU smaller batches are padded to the next size. A single N means 1, "
        "2, 4 and every multiple of 8 up to N; sizes above max-num-seqs are lowered to it",
        default_note="as for N = 256, then every 16th up to 512, none above max-num-seqs; on a CPU "
        "every number up to 64",
    )
    disable_hybrid_kv_cache_manager: bool = flag(
        False,
        help="keep the KV cache of layers with a sliding window as long as that of the other "
        "layers: it takes more memory, and cached prefixes are found more often",
    )
