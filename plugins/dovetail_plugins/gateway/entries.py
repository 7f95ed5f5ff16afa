"""The models that a gateway serves, from the command line or from the file of --models.

It reads the flags of each model and of the gateway, and starts no processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.sources.model_path import DEMO_NAME
from dovetail.config.config import Config, flags
from dovetail.config.parse.yaml_files import fields_of, read_mapping
from dovetail.config.rules.adapters import adapter_names
from dovetail.config.rules.checks import checked
from dovetail.config.rules.model.checkpoint import served_names
from dovetail.config.rules.model.demo import DEMO_FIELDS
from dovetail.config.sections.field import flags_of
from dovetail.config.sections.gateway import GatewayConfig
from dovetail.errors import ConfigError

FLAG = "--models"
MODELS = "models"
ANY = "any"
"""The word for every model of this machine, as a value of the flag and a key in its file."""
PER_MODEL = ("load", "idle_after_s", "on_idle", "pinned")
"""Fields of GatewayConfig that can be set per model."""

KEPT = frozenset(
    {
        "host",
        "port",
        "uds",
        "api_key",
        "api_keys_file",
        "gate",
        "owner_header",
        "allowed_origins",
        "allowed_hosts",
        "allowed_methods",
        "allowed_headers",
        "allow_credentials",
        "disable_access_log_for_endpoints",
        "disable_uvicorn_access_log",
        "enable_request_id_headers",
        "timeout_keep_alive",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "ssl_ciphers",
        "enable_ssl_refresh",
        "middleware",
        *(flag.name for flag in flags_of(GatewayConfig)),
    }
)
"""Flags used by the gateway only, not passed to a model's own server."""

SHARED = KEPT.difference(PER_MODEL) | {
    "root_path",
    "ui",
    "enable_dev_endpoints",
    "max_body_bytes",
    "h11_max_incomplete_event_size",
    "h11_max_header_count",
    "shutdown_timeout",
    "api",
    "log_level",
    "log_config_file",
    "log_format",
    "configure_logging",
    "uvicorn_log_level",
}
"""Flags of the shared address: set for all models, on the command line or in --config."""

STORES = {"model_dir", "download_dir", "hf_token", "use_modelscope"}

IMPOSSIBLE = {
    "keep_alive_on_engine_death": "a model whose engine has died is started again, for which its "
    "server has to end.",
    "headless": "the engines of one machine join one model's server.",
    "file_storage": "two models' servers cannot share a folder of files and batches.",
    "allow_runtime_lora_updating": "which model a name belongs to is known before it is loaded.",
    "lora_resolver_cache_dir": "which model a name belongs to is known before it is loaded.",
    "lora_resolvers": "which model a name belongs to is known before it is loaded.",
}
"""Flags that cannot be used for several models together."""

NEVER = IMPOSSIBLE.keys() - {"file_storage"}
"""The flags among them that cannot be set for a single one of several models either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model: its client-visible names, its config, and when it is in memory.

    `sleep_level` 0: an idle model is unloaded. `idle_after_s` 0: it stays loaded forever.
    `is_pinned`: it does not make room for others. `aliases` are names that no list shows. `path`
    is where a model lies that was found by its name; it may be deleted meanwhile.
    """

    names: tuple[str, ...]
    config: Config
    loads_at_start: bool
    idle_after_s: float
    sleep_level: int
    is_pinned: bool = False
    aliases: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def name(self) -> str:
        """Return the name used in answers and metrics."""
        return self.names[0]

    @property
    def every_name(self) -> tuple[str, ...]:
        """Return all names that requests may use, including its adapters'."""
        return (*self.names, *adapter_names(self.config.lora, self.config.prompt_adapter))

    @property
    def names_and_aliases(self) -> tuple[str, ...]:
        """Return all names that requests may use, including those that no list shows."""
        return (*self.every_name, *self.aliases)


def says_nothing_of_a_model(config: Config) -> bool:
    """Return whether only flags of the address and of the stores are given."""
    return config.origins.keys() <= SHARED | STORES | set(DEMO_FIELDS)


def entries_of(config: Config, models: Sequence[str | None]) -> tuple[ModelEntry, ...]:
    """Return the models in order; None is the demo model. `config` is shared by all of them.
    Raises: ConfigError"""
    if config.gateway.models == ANY:
        found = _of_words(config, models)
    elif config.gateway.models is not None:
        found = _of_file(config, config.gateway.models, models)
    else:
        found = _of_words(config, models)
    _check_names(found)
    _check_folders(found)
    return tuple(found)


def offers_any(config: Config) -> bool:
    """Return whether every model of this machine may be named. Raises: ConfigError"""
    path = config.gateway.models
    if path is None or path == ANY:
        return path == ANY
    value = read_mapping(path, FLAG).get(ANY, False)
    if not isinstance(value, bool):
        raise ConfigError(
            "must be true or false.", where=f"{path}, {ANY}", fix="write `any: true`."
        )
    return value


def _of_words(config: Config, models: Sequence[str | None]) -> list[ModelEntry]:
    """Return a model per word of the command line, named by --served-model-name in order."""
    _check_possible(config, IMPOSSIBLE)
    names = config.model.served_model_name
    if names and len(names) != len(models):
        raise ConfigError(
            f"{len(models)} models have {len(names)} names.",
            where="--served-model-name",
            fix="give one name for each model, in their order; several names for one model go "
            "into a file for --models.",
        )
    given = names or tuple(model or DEMO_NAME for model in models)
    return [
        entry_of(config.with_fields(_named(model) | {"served_model_name": [name]}))
        for model, name in zip(models, given, strict=True)
    ]


def _named(model: str | None) -> dict[str, str]:
    return {} if model is None else {"model": model}


def _of_file(config: Config, path: str, models: Sequence[str | None]) -> list[ModelEntry]:
    """Return the models of a file, with their own flags overriding the command line's."""
    named = models[0] if models else config.model.model
    if named is not None:
        raise ConfigError(
            f"the file names the models, and {named!r} is named beside it.",
            where=FLAG,
            fix="put the model into the file.",
        )
    if config.is_given("served_model_name"):
        raise ConfigError(
            "one name cannot be that of every model.",
            where="--served-model-name",
            fix=f"write served_model_name below each model of {path}.",
        )
    _check_possible(config, IMPOSSIBLE)
    content = read_mapping(path, FLAG)
    rows = content.get(MODELS, [] if content.get(ANY) is True else None)
    others = [str(key) for key in content if key not in (MODELS, ANY)]
    if others or not isinstance(rows, list) or not (rows or content.get(ANY)):
        raise ConfigError(
            f"must hold `{MODELS}:` with a list of models"
            + (f", and nothing beside it: {', '.join(others)}." if others else "."),
            where=path,
            fix="e.g. `models: [{model: FOLDER, served_model_name: [a]}]`; flags for all of them "
            "are given on the command line, or in a file for --config.",
        )
    return [_row(config, f"{path}, model {number}", row) for number, row in enumerate(rows, 1)]


def _row(config: Config, where: str, row: Any) -> ModelEntry:
    if not isinstance(row, Mapping):
        raise ConfigError("must be `flag: value` lines.", where=where, fix="begin with `model:`.")
    fields = fields_of(where, row)
    if not fields.get("model"):
        raise ConfigError("names no model.", where=where, fix="write `model: FOLDER`.")
    wrong = sorted(SHARED & fields.keys())
    if wrong:
        raise ConfigError(
            f"{wrong[0]} belongs to the address that all models share.",
            where=where,
            fix=f"give {flags()[wrong[0]].spelling} on the command line.",
        )
    own = config.with_fields(fields, origin=where)
    _check_possible(own, NEVER, where)
    return entry_of(own)


def _check_possible(config: Config, names: Iterable[str], where: str | None = None) -> None:
    """Raise ConfigError if a flag in `names` is set. `where` is the row that sets it."""
    for name in sorted(names):
        if config.value(name):
            raise ConfigError(
                IMPOSSIBLE[name],
                where=f"{where}, {name}" if where else flags()[name].spelling,
                fix="leave it out, or serve one model.",
            )


def entry_of(config: Config, aliases: Iterable[str] = (), path: Path | None = None) -> ModelEntry:
    """Return the entry of a model's own config. Raises: ConfigError"""
    gateway = config.gateway
    return ModelEntry(
        names=served_names(config.model),
        config=checked(config),
        loads_at_start=bool(gateway.load),
        idle_after_s=gateway.idle_after_s,
        sleep_level=gateway.on_idle,
        is_pinned=gateway.pinned,
        aliases=tuple(aliases),
        path=path,
    )


def _check_names(found: Sequence[ModelEntry]) -> None:
    """Raise ConfigError if two models share a name."""
    owners: dict[str, ModelEntry] = {}
    for entry in found:
        for name in entry.every_name:
            if owners.setdefault(name, entry) is not entry:
                raise ConfigError(
                    f'two models are called "{name}".',
                    where="--served-model-name",
                    fix="give each model its own name.",
                )


def _check_folders(found: Sequence[ModelEntry]) -> None:
    """Raise ConfigError if two models share a folder of files and batches."""
    owners: dict[Path, ModelEntry] = {}
    for entry in found:
        folder = entry.config.frontend.file_storage
        if folder and owners.setdefault(Path(folder).resolve(), entry) is not entry:
            raise ConfigError(
                IMPOSSIBLE["file_storage"],
                where=f"{flags()['file_storage'].spelling} of {entry.name}",
                fix="give each model its own folder.",
            )
