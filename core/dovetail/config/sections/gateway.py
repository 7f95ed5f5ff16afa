"""GatewayConfig: several models behind one address."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Several models in one server."""

    models: str | None = flag(
        None,
        metavar="any|FILE.yaml",
        help="any: serve every model that `dovetail list` shows, each loaded when a request names "
        "it; or a file of models to serve behind one address: `models:` and a list, each with "
        "`model` and its own flags, and `any: true` for all others of this machine",
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
        "for ever. Ollama's clients may set it for a model with keep_alive",
        default_note="0; 300 for models loaded by name with --models any",
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
    pinned: bool = flag(
        False,
        help="a model of several never leaves memory to make room, only when it is idle",
    )
    max_loaded_models: int = flag(
        0,
        ge=0,
        le=1024,
        metavar="NUM",
        help="how many of several models are loaded at a time; 0: as many as fit into memory",
    )
    models_memory_bytes: int | None = flag(
        None,
        ge=1,
        unit="bytes",
        help="memory that the loaded models may take together, by the estimate of `dovetail "
        "inspect`; before one more is loaded, those unused for longest are unloaded",
        default_note="what is free",
    )
    manage_models: bool | None = flag(
        None,
        help="let clients load, unload, pull, make, copy and delete models of several",
        default_note="only where the server listens on a loopback address or a Unix socket",
    )
    admin_api_key: tuple[str, ...] = flag(
        (),
        secret=True,
        metavar="KEY",
        help="keys that may manage models (--manage-models); by default those of --api-key",
    )
