"""ObservabilityConfig: what is logged and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """Logs and statistics."""

    disable_log_stats: bool = flag(False, help="do not log statistics regularly")
    log_level: str = flag(
        "info", kind="log_level", help="lowest level of the messages that are logged"
    )
    stat_loggers: tuple[str, ...] = flag(
        ("log", "prometheus"),
        kind="stat_logger",
        help="loggers that receive the engine's statistics",
        metavar="NAME",
    )
    otlp_traces_endpoint: str | None = flag(
        None,
        metavar="URL",
        help="OpenTelemetry collector to which a trace of every request is sent",
    )
    collect_detailed_traces: tuple[str, ...] = flag(
        (), kind="trace_module", help="parts of the engine whose steps are traced in detail"
    )
    show_hidden_metrics_for_version: str | None = flag(
        None, metavar="VERSION", help="show deprecated metrics that were hidden in this version"
    )
    log_format: str = flag(
        "text",
        kind="log_format",
        help="form of the lines of the log; json: one JSON object a line, with time, level, "
        "logger, message and request_id",
    )
    log_prefix: str = flag("", metavar="TEXT", help="text before every line of the log")
    configure_logging: bool = flag(
        True,
        help="set up logging; turn it off where the program that embeds dovetail, or a plugin, "
        "does that",
    )
    show_notes: bool = flag(
        True,
        help="log at the start which older names were translated and which settings have no effect",
    )
    log_config_file: str | None = flag(
        None,
        metavar="FILE.json",
        help="JSON file with the logging configuration, in the format of Python's "
        "logging.config.dictConfig",
    )
    profiler_config: Mapping[str, Any] = flag(
        {},
        key="torch_profiler_dir",
        metavar="FOLDER|JSON",
        help="let POST /start_profile and /stop_profile run torch's profiler on every rank; each "
        "writes a trace into the folder. As JSON: torch_profiler_dir, profiler (torch), "
        "torch_profiler_record_shapes, torch_profiler_with_memory, torch_profiler_with_stack, "
        "torch_profiler_with_flops and torch_profiler_use_gzip",
    )
