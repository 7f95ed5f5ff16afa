"""EngineConfig: how far the engine goes to make steps fast, and how it joins other engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The engine as a whole."""

    compilation_config: Mapping[str, Any] = flag(
        {},
        kind="compilation_level",
        short="-O",
        aliases=("-cc",),
        key="level",
        metavar="LEVEL|JSON",
        help="optimization level of steps. 0: torch's operators; 1: fused kernels where the "
        "device has them; 2: also captured steps (CUDA graphs) where the device can; 3: "
        "also torch.compile for the parts between attention, if a measurement at the start "
        "finds it faster. As JSON, or -O.KEY=VALUE: mode is vLLM's, none or one that "
        "compiles; use_cudagraph false or cudagraph_mode none captures "
        "nothing; cudagraph_capture_sizes and max_capture_size set the captured batch "
        "sizes",
        default_note="2",
    )
    additional_config: Mapping[str, Any] = flag(
        {}, help="options of the worker, the same as --plugin-options.worker"
    )
    engine_step_timeout: float | None = flag(
        None,
        ge=0.1,
        unit="seconds",
        help="how long a step may take; after that the engine counts as dead and is stopped",
        default_note="no limit",
    )
    max_engine_restarts: int = flag(
        5,
        ge=0,
        help="how often an engine that has died is started again within ten minutes; one more "
        "death, and it is given up. Its requests without output run again. 0: dead engines stay "
        "dead, and their requests end with an error. So do those whose ranks torchrun or another "
        "launcher has started",
    )
    engine_reply_timeout: float = flag(
        10.0,
        ge=0.001,
        unit="seconds",
        help="how long to wait for the engine's answer to an administrative call",
    )
    socket_dir: str | None = flag(
        None,
        metavar="FOLDER",
        help="folder for the socket between the server and its engine",
        default_note="TMPDIR, or /tmp",
    )
    kv_transfer_config: Mapping[str, Any] = flag(
        {},
        kind="kv_connector",
        key="kv_connector",
        metavar="JSON",
        help="where blocks of the KV cache are kept beside the device, and how they come back. "
        "kv_connector: offloading (host memory, then a folder), shared_storage (a folder of "
        "several engines), multi or a plugin; kv_role: kv_both, kv_producer or kv_consumer; "
        "kv_connector_extra_config: the connector's options; kv_load_failure_policy: recompute "
        "or fail; kv_buffer_size in bytes, kv_load_timeout in seconds",
    )
    kv_events_config: Mapping[str, Any] = flag(
        {},
        kind="kv_event_publisher",
        help="tells others what the prefix cache holds: enable_kv_cache_events, publisher (zmq or "
        "null), endpoint, replay_endpoint, buffer_steps, hwm, max_queue_size, topic",
    )
