"""ObservabilityConfig: what is logged and counted."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.field import flag


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
