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
        help="most tokens computed in one step",
        default_note="256 on CPUs, 2048 on GPUs",
    )
    max_num_seqs: int | None = flag(
        None,
        ge=1,
        unit="requests",
        help="most requests that run at the same time",
        default_note="64 on CPUs, 256 on GPUs",
    )
    enable_chunked_prefill: bool = flag(
        True, help="divide long prompts over several steps, so that others keep going"
    )
    long_prefill_token_threshold: int = flag(
        0,
        ge=0,
        unit="tokens",
        help="most prompt tokens of one request in one step; 0 sets no such limit",
    )
    scheduling_policy: str = flag(
        "fcfs", kind="scheduling_policy", help="order in which waiting requests start"
    )
    scheduler_cls: str = flag("continuous", kind="scheduler", help="scheduler that plans the steps")
    async_scheduling: bool = flag(
        False, help="plan the next step while the device still runs this one"
    )
    max_num_queued_reqs: int | None = flag(
        None,
        ge=1,
        unit="requests",
        help="most requests that may wait; beyond it clients get 503 at once",
        default_note="four times max-num-seqs",
    )
    max_num_partial_prefills: int | None = flag(
        None,
        ge=1,
        unit="requests",
        help="most prompts that are computed in parts at the same time; others wait their turn",
        default_note="no limit",
    )
    max_long_partial_prefills: int | None = flag(
        None,
        ge=1,
        unit="requests",
        help="most prompts above long-prefill-token-threshold (without one: above a step) that "
        "are computed in parts at the same time; shorter ones overtake those that wait for it",
        default_note="no limit",
    )
    cuda_graph_sizes: tuple[str, ...] = flag(
        (),
        metavar="N",
        aliases=("--CUDA-graph-sizes",),
        help="numbers of requests for which steps of one token each are captured as device graphs, "
        "or recorded on a CPU; smaller steps are padded on a GPU. A single N means 1, 2, 4 and "
        "every 8th number up to N; a number above max-num-seqs means that one",
        default_note="as for N = 256, then every 16th up to 512, none above max-num-seqs; on a CPU "
        "every number up to 64",
    )
    disable_hybrid_kv_cache_manager: bool = flag(
        False,
        help="let layers with a sliding window keep their cache as long as the others do, which "
        "takes more of it and finds a cached prefix wherever the others have it",
    )
