"""GatewayConfig: several models behind one address."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Several models in one server."""

    models: str | None = flag(
        None,
        metavar="FILE.yaml",
        help="serve the models of this file behind one address: `models:` and a list, each with "
        "`model` and its own flags",
    )
    load: int = flag(
        1,
        ge=0,
        le=1,
        metavar="WHEN",
        words={"at_start": 1, "at_first_use": 0},
        default_note="at_start",
        help="when a model of several is loaded: at_start, or at_first_use, by the first request "
        "that names it",
    )
    idle_after_s: float = flag(
        0.0,
        ge=0,
        le=365 * 86400,
        unit="seconds",
        help="how long a model of several goes without requests before --on-idle is done; 0 is "
        "for ever",
    )
    on_idle: int = flag(
        0,
        ge=0,
        le=2,
        metavar="WHAT",
        words={"unload": 0, "sleep": 1},
        default_note="unload",
        help="what is done with an idle model of several: unload (its processes end), or sleep; 2 "
        "is sleep mode of level 2. The processes of a sleeping model stay, and it wakes up sooner",
    )
    load_wait_s: float = flag(
        300.0,
        ge=0,
        le=86400,
        unit="seconds",
        help="how long a request waits for its model to be loaded or woken up before it is "
        "answered with 503",
    )
    models_memory_bytes: int | None = flag(
        None,
        ge=1,
        unit="bytes",
        help="memory that the loaded models may take together, by the estimate of `dovetail "
        "inspect`; before one more is loaded, those unused for longest are unloaded",
        default_note="what is free",
    )
