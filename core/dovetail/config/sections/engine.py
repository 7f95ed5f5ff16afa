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
        key="level",
        metavar="LEVEL|JSON",
        help="how steps are made fast, by level: 0 runs the framework's operators one by one, 1 "
        "joins them where the device has kernels for it, 2 also captures whole steps where the "
        "device can, 3 also has torch.compile join what lies between attention, where the start "
        "measures that to be faster; use_cudagraph false or cudagraph_mode none captures nothing, "
        "cudagraph_capture_sizes and max_capture_size say which numbers of requests are captured",
        default_note="2",
    )
    additional_config: Mapping[str, Any] = flag(
        {}, help="options of the worker, as --plugin-options.worker gives them"
    )
    engine_step_timeout: float | None = flag(
        None,
        ge=0.1,
        unit="seconds",
        help="how long a step may take; an engine in a longer one counts as dead and is ended",
        default_note="no limit",
    )
    engine_reply_timeout: float = flag(
        10.0,
        ge=0.001,
        unit="seconds",
        help="how long to wait for the engine's answer to an operator's question",
    )
    socket_dir: str | None = flag(
        None,
        metavar="FOLDER",
        help="folder for the socket between the server and its engine",
        default_note="TMPDIR, or /tmp",
    )
    kv_transfer_config: Mapping[str, Any] = flag(
        {}, kind="kv_connector", help="how blocks of the KV cache move between engines"
    )
    kv_events_config: Mapping[str, Any] = flag(
        {}, kind="kv_event_publisher", help="where changes of the KV cache are told"
    )
