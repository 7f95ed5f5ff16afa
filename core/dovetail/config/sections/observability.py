"""ObservabilityConfig: what is logged and counted."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """Logs and statistics."""

    disable_log_stats: bool = flag(False, help="leave the regular statistics line out of the log")
    log_level: str = flag("info", kind="log_level", help="least severe messages that are logged")
    stat_loggers: tuple[str, ...] = flag(
        ("log", "prometheus"),
        kind="stat_logger",
        help="receivers of the engine's statistics",
        metavar="NAME",
    )
    otlp_traces_endpoint: str | None = flag(
        None, metavar="URL", help="OpenTelemetry collector that gets a trace of every request"
    )
    collect_detailed_traces: tuple[str, ...] = flag(
        (), kind="trace_module", help="parts of the engine that are traced step by step"
    )
    show_hidden_metrics_for_version: str | None = flag(
        None, metavar="VERSION", help="show the metrics hidden since that version"
    )
    log_prefix: str = flag("", metavar="TEXT", help="text before every line of the log")
    configure_logging: bool = flag(
        True, help="set up the log; off leaves it to whoever embeds dovetail, and to plugins"
    )
    show_notes: bool = flag(
        True, help="tell at the start which older names were translated, and what has no effect"
    )
    log_config_file: str | None = flag(
        None, metavar="FILE.json", help="logging setup in the form of Python's dictConfig"
    )
