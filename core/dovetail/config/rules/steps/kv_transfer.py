"""--kv-transfer-config and --kv-events-config: KV blocks outside the device, prefix-cache events.

Every key is applied, refused, or logged as having no effect. Everything that a block's content
depends on, except tokens and layout, becomes one digest.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.sources.weights_check import weight_files
from dovetail.config.checkpoint.sources.weights_digest import files_digest
from dovetail.config.config import Config
from dovetail.config.rules.json_keys import read_keys
from dovetail.config.rules.selections import select
from dovetail.config.rules.steps.schedule import finds_prefixes
from dovetail.config.sections.cache import CacheConfig
from dovetail.config.sections.engine import EngineConfig
from dovetail.config.sections.scheduler import SchedulerConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RunSpec, Selection
from dovetail.interfaces.kv_connector import FAIL, RECOMPUTE, TransferSpec
from dovetail.interfaces.kv_event_publisher import EventsSpec
from dovetail.version import __version__

log = logging.getLogger(__name__)

FLAG, EVENTS_FLAG = "--kv-transfer-config", "--kv-events-config"
CONNECTOR = "kv_connector"
PRODUCER, CONSUMER, BOTH = "kv_producer", "kv_consumer", "kv_both"
FORMAT = 1
"""Incremented when blocks of another version of dovetail must not be read."""

_APART = frozenset(
    {
        *("model", "rank", "seed", "transfer", "adapters", "pooling", "structured_output"),
        *("max_rows", "max_step_tokens", "max_model_tokens", "memory_share", "graph_sizes"),
        *("logits_processors", "logprobs_stage", "logprobs_scale", "acceptance", "drafts"),
        *("num_threads", "thread_spin_us", "pins_threads", "processors", "rank_processors"),
        *("async_steps", "shows_progress", "load_options", "engines_folder", "communicator"),
        "profile",
    }
)
"""Facts of a run that do not affect the content of blocks, or that are hashed separately."""

OTHER_NAMES = {
    "OffloadingConnector": "offloading",
    "SimpleCPUOffloadConnector": "offloading",
    "SharedStorageConnector": "shared_storage",
    "ExampleConnector": "shared_storage",
    "MultiConnector": "multi",
    "DecodeBenchConnector": "decode_bench",
    "LMCacheConnectorV1": "lmcache",
    "MooncakeStoreConnector": "mooncake",
    "NixlConnector": "nixl",
}
"""vLLM's names of connectors -> dovetail's; the last three are separate packages."""
_OTHER_OPTIONS = {"cpu_bytes_to_use": "host_bytes", "shared_storage_path": "folder"}
_NESTED = "connectors"
PORTS = ("kv_ip", "kv_port", "kv_rank", "kv_parallel_size")
"""Keys for the address of an engine; a connector with ports takes them as options."""
UNIT_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferKeys:
    """The keys of --kv-transfer-config. `kv_rank` and the next three are for connectors that reach
    other engines through ports."""

    kv_connector: str | None = None
    kv_role: str | None = None
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    kv_connector_module_path: str | None = None
    kv_load_failure_policy: str = RECOMPUTE
    engine_id: str | None = None
    kv_buffer_device: str | None = None
    kv_buffer_size: float = 1e9
    kv_rank: int | None = None
    kv_parallel_size: int | None = None
    kv_ip: str | None = None
    kv_port: int | None = None
    enable_permute_local_kv: bool = False
    kv_load_timeout: float = 30.0
    kv_unit_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKeys:
    """The keys of --kv-events-config, except the publisher's own."""

    enable_kv_cache_events: bool = False
    publisher: str | None = None


def transfer_spec(config: Config, run: RunSpec) -> TransferSpec | None:
    """Return how blocks are stored outside the device, or None. Raises: ConfigError"""
    raw = config.engine.kv_transfer_config
    if not raw:
        return None
    keys = read_keys(TransferKeys, raw, FLAG)
    if keys.kv_connector is None:
        raise ConfigError(
            "no connector is named.", where=f"{FLAG}.kv_connector", fix="name one, or leave it out."
        )
    _check(
        keys, config.cache, run, finds=finds_prefixes(config.model, config.multimodal, run.model)
    )
    connector = _with_ports(keys, _connector(keys))
    unit = _unit_tokens(keys, connector, run)
    return TransferSpec(
        connector=connector,
        identity=_identity(run, config.cache, config.scheduler, in_units=unit > 0),
        saves=keys.kv_role != CONSUMER,
        loads=keys.kv_role != PRODUCER,
        failure_policy=keys.kv_load_failure_policy,
        buffer_bytes=int(keys.kv_buffer_size),
        load_timeout_s=keys.kv_load_timeout,
        engine_id=keys.engine_id or "",
        unit_tokens=unit,
    )


def events_spec(cache: CacheConfig, engine: EngineConfig) -> EventsSpec | None:
    """Return the publisher of prefix-cache events, or None. Raises: ConfigError"""
    raw = dict(engine.kv_events_config)
    if not raw:
        return None
    own = {name.replace("-", "_"): value for name, value in raw.items()}
    named: dict[str, Any] = {
        name: own.pop(name) for name in ("enable_kv_cache_events", "publisher") if name in own
    }
    keys = read_keys(EventKeys, named, EVENTS_FLAG)
    if not keys.enable_kv_cache_events:
        return None
    if not cache.enable_prefix_caching:
        raise _needs_prefixes(EVENTS_FLAG, "events tell of the prefix cache")
    publisher = keys.publisher or "zmq"
    place = f"{EVENTS_FLAG}.publisher"
    return EventsSpec(publisher=select("kv_event_publisher", publisher, options=own, where=place))


def check_parts(
    transfer: TransferSpec | None, scheduler: Selection, executor: Selection, worker: Selection
) -> None:
    """Raise ConfigError unless scheduler, executor and worker support a transfer."""
    if transfer is None:
        return
    for part, word in ((scheduler, "swap"), (worker, CONNECTOR)):
        if word not in registry.admin.load_selection(part).capabilities:
            raise ConfigError(
                f"the {part.kind} {part.name} cannot start requests with blocks from elsewhere.",
                where=FLAG,
                fix=f"leave the flag out, or choose another {part.kind}.",
            )
    if "launched_ranks" in registry.admin.load_selection(executor).capabilities:
        raise ConfigError(
            f"with the executor {executor.name} every rank's engine plans the same steps, and "
            "blocks come to each at another time.",
            where=FLAG,
            fix="use --distributed-executor-backend mp.",
        )


def _check(keys: TransferKeys, cache: CacheConfig, run: RunSpec, *, finds: bool) -> None:
    """Raise ConfigError for keys that do not fit with each other or with other flags."""
    if keys.kv_role not in (PRODUCER, CONSUMER, BOTH):
        what = f'"{keys.kv_role}" is not a role.' if keys.kv_role else "no role is given."
        raise ConfigError(
            what,
            where=f"{FLAG}.kv_role",
            fix=f"use {BOTH}, {PRODUCER} (saves blocks) or {CONSUMER} (loads them).",
        )
    if keys.kv_load_failure_policy not in (RECOMPUTE, FAIL):
        raise ConfigError(
            f'"{keys.kv_load_failure_policy}" is not a policy.',
            where=f"{FLAG}.kv_load_failure_policy",
            fix=f"use {RECOMPUTE} or {FAIL}.",
        )
    if keys.enable_permute_local_kv:
        why = "engines exchange blocks only if their layouts are the same"
        log.warning("%s.enable_permute_local_kv has no effect: %s", FLAG, why)
    if keys.kv_buffer_device not in (None, "cpu"):
        why = "blocks on their way are kept in host memory"
        log.warning("%s.kv_buffer_device has no effect: %s", FLAG, why)
    for name in ("kv_buffer_size", "kv_load_timeout"):
        if getattr(keys, name) <= 0:
            raise ConfigError("is not above 0.", where=f"{FLAG}.{name}")
    if not cache.enable_prefix_caching:
        raise _needs_prefixes(FLAG, "blocks are found by their prefixes")
    if run.model.encoder is not None:
        raise ConfigError(
            "what a decoder keeps depends on what its encoder has read, so no prefix finds it.",
            where=FLAG,
            fix="leave it out; --swap-space carries such blocks.",
        )
    if not finds:
        raise ConfigError(
            "what a prompt keeps depends on all of it, so no prefix finds it.",
            where=FLAG,
            fix="leave it out; --swap-space carries such blocks.",
        )
    if run.drafts is not None:
        raise ConfigError(
            "no connector carries the keys that a drafter beside the model keeps.",
            where=FLAG,
            fix="leave this flag or --speculative-config out, or use a drafter such as ngram.",
        )
    if run.rank.data_size > 1:
        raise ConfigError(
            "engines that share experts run every step together, and blocks come to each at "
            "another time.",
            where=FLAG,
            fix="leave this flag or --enable-expert-parallel out.",
        )


def _needs_prefixes(flag: str, why: str) -> ConfigError:
    return ConfigError(
        f"{why}, and prefix caching is off.", where=flag, fix="set --enable-prefix-caching."
    )


def _connector(keys: TransferKeys) -> Selection:
    """Return the connector that the keys name. Raises: PluginError, ConfigError"""
    assert keys.kv_connector is not None
    name, module = keys.kv_connector, keys.kv_connector_module_path
    spec = f"{module}:{name}" if module else own_name(name)
    options = {_OTHER_OPTIONS.get(k, k): v for k, v in keys.kv_connector_extra_config.items()}
    place = f"{FLAG}.kv_connector"
    if "several" in registry.load(CONNECTOR, spec, where=place).capabilities and _NESTED in options:
        options[_NESTED] = [_nested(one) for one in options[_NESTED]]
    return select(CONNECTOR, spec, where=place, options=options)


def own_name(name: str) -> str:
    """Return dovetail's name of a connector, if it is registered here."""
    own = OTHER_NAMES.get(name, name)
    return own if own in registry.names(CONNECTOR) else name


def _nested(raw: Any) -> dict[str, Any]:
    """Return one of several connectors as the plain data of a Selection. Raises: ConfigError"""
    place = f"{FLAG}.kv_connector_extra_config.{_NESTED}"
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{raw!r} is not an object with a kv_connector.", where=place)
    keys = read_keys(TransferKeys, raw, place)
    if keys.kv_connector is None:
        raise ConfigError("a connector without a name.", where=f"{place}.kv_connector")
    if (
        set(raw)
        - {"kv_connector", "kv_role", "kv_connector_extra_config"}
        - {"kv_connector_module_path"}
    ):
        raise ConfigError(
            "keys of the whole transfer stand beside the connectors, not in one of them.",
            where=place,
            fix="leave kv_connector, kv_connector_module_path and kv_connector_extra_config.",
        )
    if keys.kv_role not in (None, BOTH):
        raise ConfigError("all connectors have the same role.", where=f"{place}.kv_role")
    plain: dict[str, Any] = msgspec.to_builtins(_connector(keys))
    return plain


def _with_ports(keys: TransferKeys, connector: Selection) -> Selection:
    """Return a connector with the keys for its engine's address. Raises: ConfigError"""
    given = {name: getattr(keys, name) for name in PORTS if getattr(keys, name) is not None}
    cls = registry.admin.load_selection(connector)
    if "has_ports" in cls.capabilities:
        options = {**connector.options, **given}
        registry.admin.options_for(cls, options, where=FLAG)
        return msgspec.structs.replace(connector, options=options)
    for name in given:
        why = f"the connector {connector.name} talks to no other engine"
        log.warning("%s.%s has no effect: %s", FLAG, name, why)
    return connector


def _unit_tokens(keys: TransferKeys, connector: Selection, run: RunSpec) -> int:
    """Return the tokens per piece if blocks travel in pieces, else 0. Raises: ConfigError"""
    given, place = keys.kv_unit_tokens, f"{FLAG}.kv_unit_tokens"
    can_divide = "pieces" in registry.admin.load_selection(connector).capabilities
    backend = registry.admin.load_selection(run.attention)
    can_split = bool(backend.kv_axes_of(run.kv_dtype))
    is_divided = run.rank.num_stages > 1 or run.rank.context_size > 1
    if not can_divide or not can_split or is_divided:
        if given:
            why = (
                f"the connector {connector.name} exchanges whole blocks"
                if not can_divide
                else "stages and context parallelism exchange whole blocks"
                if is_divided
                else f"{run.attention.name} cannot divide blocks of {run.kv_dtype}"
            )
            log.warning("%s has no effect: %s", place, why)
        return 0
    cell = backend.cell_tokens
    if given is None:
        unit = math.gcd(UNIT_TOKENS, run.block_tokens)
        return 0 if unit % cell else unit
    unit = given
    if unit < 0 or (unit and (run.block_tokens % unit or unit % cell)):
        raise ConfigError(
            f"{unit} does not divide a block of {run.block_tokens} tokens, or is not a multiple of "
            f"{cell}, which {run.attention.name} keeps together.",
            where=place,
            fix="use a number that fits the block sizes of all engines that exchange blocks, or 0 "
            "for whole blocks.",
        )
    return unit


def _identity(
    run: RunSpec, cache: CacheConfig, scheduler: SchedulerConfig, *, in_units: bool
) -> str:
    """Return the digest of everything that a block's content depends on, except tokens and layout.

    It covers the weights, and all facts of a run except those known to change nothing. Engines with
    any block size and number of ranks can exchange pieces (their layout: engine.building).
    """
    facts = {name: getattr(run, name) for name in run.__struct_fields__ if name not in _APART}
    facts["model"] = msgspec.structs.replace(run.model, path="")
    facts["rank"] = msgspec.structs.replace(run.rank, rank=0, tensor_rank=0, local_rank=0, stage=0)
    if in_units:
        del facts["rank"], facts["block_tokens"]
    if "random_weights" in registry.admin.load_selection(run.load_format).capabilities:
        facts["seed"] = run.seed
    if set(run.model.rope_rules) - {"default"}:
        facts["positions"] = run.max_model_tokens
    settings = (
        cache.prefix_caching_hash_algo,
        scheduler.disable_hybrid_kv_cache_manager,
    )
    parts = ((FORMAT, __version__), files_digest(weight_files(run.model.path)), facts, settings)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
