"""Names to Selections: the parent process finds and checks every plugin of an engine once.

Built-in plugins with modules that import torch are selected by their entry alone: this process must
not load torch. Their classes are checked when they are loaded.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.config.config import flags
from dovetail.config.rules.model import demo
from dovetail.config.rules.model.architectures import registered
from dovetail.config.rules.model.model_impl import wanted_impl
from dovetail.config.rules.model.transformers_models import PAGE, known_classes
from dovetail.config.rules.multimodal.kinds import is_backed_with_media
from dovetail.config.rules.observability import stat_loggers
from dovetail.config.sections.cache import CacheConfig
from dovetail.config.sections.engine import EngineConfig
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.config.sections.load import LoadConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.multimodal import MultiModalConfig
from dovetail.config.sections.observability import ObservabilityConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.config.sections.scheduler import SchedulerConfig
from dovetail.errors import ConfigError, PluginError, UnknownPlugin
from dovetail.interfaces.data.spec import LOGITS, NO_TOKENIZER, ModelSpec, Selection
from dovetail.interfaces.load_format import Checkpoint
from dovetail.interfaces.platform import PlatformDefaults
from dovetail.interfaces.quantization import QuantMethod
from dovetail.registry.entry import BUILT_IN
from dovetail.registry.select import reasons_against

log = logging.getLogger(__name__)

_USE_TORCH = frozenset(
    {"adapter", "load_format", "logits_processor", "model", "quantization", "worker"}
)
TAKEN_OVER = {
    "vllm.core.scheduler.Scheduler": "continuous",
    "vllm.v1.core.sched.scheduler.Scheduler": "continuous",
}
"""vLLM's class paths in existing command lines -> dovetail's own names."""

STRATEGY = "--safetensors-load-strategy"
_READER_FLAGS = {
    "safetensors_load_strategy": ("reading", "safetensors"),
    "pt_load_map_location": ("map_location", "torch.save"),
    "mmproj": ("mmproj", "GGUF"),
}
"""Flags that set an option of some load formats -> the option, and the files it concerns."""
LOADER_OPTIONS = "--model-loader-extra-config"
OWN_MODELS, TRANSFORMERS = "dovetail", "transformers"
"""Values of --model-impl; any other is the name of a model plugin."""
TRANSFORMERS_MEDIA, ENCODER = "transformers_media", "transformers_encoder"
"""The model plugins that run transformers' code of models with media, and of encoders."""
BITSANDBYTES = "bitsandbytes"
"""A quantization method with a load format of the same name."""
AUTO = "auto"
PROCESSES = "mp"
NSIGHT_OPTION = "uses_nsight"
"""The executor option that --ray-workers-use-nsight sets."""
NO_CHOICE = (None, "", AUTO)


def select(
    kind: str,
    spec: str,
    *,
    query: Any = None,
    options: Mapping[str, Any] | None = None,
    where: str | None = None,
) -> Selection:
    """Return the Selection of a name or "auto". Raises: PluginError."""
    if kind in _USE_TORCH and not options and _is_built_in(kind, spec):
        return registry.admin.defer(kind, spec, where=where)
    return registry.choose(kind, spec, query=query, options=options, where=where)


def _is_built_in(kind: str, spec: str) -> bool:
    """Return whether the name can only mean one of dovetail's own plugins."""
    offered = registry.entries(kind)
    named = [entry for entry in offered if spec in (entry.name, entry.id)]
    if spec == "auto" and not named:
        named = offered
    targets = {(entry.distribution, entry.target) for entry in named}
    return len(targets) == 1 and named[0].is_own


def no_tokenizer(
    model_config: ModelConfig, frontend: FrontendConfig, origins: Mapping[str, str]
) -> Selection:
    """Return a placeholder for the tokenizer. Raises: ConfigError for flags that need one."""
    needing = {
        "tokenizer": model_config.tokenizer,
        "chat_template": frontend.chat_template,
        "tool_call_parser": frontend.tool_call_parser,
        "reasoning_parser": frontend.reasoning_parser,
    }
    for name, value in needing.items():
        if value and origins.get(name) != demo.ORIGIN:
            raise ConfigError(
                "it cannot be combined with --skip-tokenizer-init.",
                where=flags()[name].spelling,
                fix="leave it or --skip-tokenizer-init out.",
            )
    target = "dovetail.engine.client.text.no_tokenizer:NoTokenizer"
    return Selection(kind="tokenizer", name=NO_TOKENIZER, target=target, distribution=BUILT_IN)


def select_scheduler(
    scheduler: SchedulerConfig,
    plugins: PluginConfig,
    origins: Mapping[str, str],
    defaults: PlatformDefaults,
) -> Selection:
    """Return the scheduler that is named, or the platform's. Class paths of vLLM's scheduler mean
    dovetail's own."""
    spec = TAKEN_OVER.get(scheduler.scheduler_cls, scheduler.scheduler_cls)
    if "scheduler_cls" not in origins:
        spec = defaults.scheduler or spec
    options = plugins.options_of("scheduler")
    return select("scheduler", spec, where="--scheduler-cls", options=options)


def select_model(
    model_config: ModelConfig, multimodal: MultiModalConfig, plugins: PluginConfig, model: ModelSpec
) -> Selection:
    """Return the model plugin: dovetail's own, else transformers' if it generates text.

    Raises: UnknownPlugin with the nearest names if neither knows the class, ConfigError if
    transformers has it for another task.
    """
    own = registered(model.architecture, model.head)
    architecture = own or model.architecture
    impl = wanted_impl(model_config)
    is_own = own is not None and architecture != TRANSFORMERS
    options = plugins.options_of("model")
    if impl not in (None, OWN_MODELS, TRANSFORMERS):
        return select("model", impl, where="--model-impl", options=options)
    if model.code is not None:
        return select("model", TRANSFORMERS, where="--model-impl", options=options)
    if is_backed_with_media(model_config, multimodal, model):
        return select("model", TRANSFORMERS_MEDIA, where="--model-impl", options=options)
    if impl != OWN_MODELS and not (impl is None and is_own):
        known = known_classes()
        text_type = str(model.hf_config.get("model_type"))
        pools = model.head != LOGITS and known.has_decoder(architecture, text_type)
        whole_type = str(model.whole_config.get("model_type"))
        has_part = known.has_text_part(architecture, text_type, whole_type)
        writes = architecture in known.causal or has_part
        if pools or writes:
            return select("model", TRANSFORMERS, where="--model-impl", options=options)
        if architecture in known.every and model.head != LOGITS:
            return select("model", ENCODER, where="--model-impl", options=options)
        if architecture in known.every:
            raise ConfigError(
                f"{architecture} is neither a decoder that takes text alone nor an encoder.",
                where="the checkpoint's architectures",
                fix=f"use a checkpoint of another architecture; {PAGE} lists what is served.",
            )
        if impl == TRANSFORMERS:
            raise UnknownPlugin(
                f"transformers has no model class {architecture}.",
                where="--model-impl",
                fix="use --model-impl auto, or check config.json's architectures.",
            )
    return select("model", architecture, where="the checkpoint's architectures", options=options)


def select_quantization(
    model_config: ModelConfig, load: LoadConfig, plugins: PluginConfig, model: ModelSpec
) -> Selection:
    """Return the quantization: the checkpoint's own, the requested one, or none.

    A load format with the name of a method requests that method. Raises: ConfigError if the two
    differ, UnknownPlugin if there is no such method.
    """
    requested = model_config.quantization
    if requested in NO_CHOICE:
        requested = BITSANDBYTES if load.load_format == BITSANDBYTES else None
    options = plugins.options_of("quantization")
    return quantization_of(model, requested, options, where="--quantization")


def quantization_of(
    model: ModelSpec, requested: str | None, options: Mapping[str, Any], *, where: str
) -> Selection:
    """Return the quantization requested at `where`, or the checkpoint's own, or none. Raises:
    ConfigError, UnknownPlugin"""
    stored = stored_quantization(model)
    if requested in NO_CHOICE:
        requested = None
    if stored and requested and ":" not in requested and not _reads(requested, stored):
        raise ConfigError(
            f'the checkpoint is stored as "{stored}", not "{requested}".',
            where=where,
            fix="leave it out.",
        )
    return select(
        "quantization",
        requested or stored or registry.admin.own("quantization", "none"),
        where=where if requested else "quantization_config of the checkpoint",
        options=options,
    )


def _reads(requested: str, stored: str) -> bool:
    """Return whether a method reads checkpoints that are stored by `stored`."""
    if requested.partition("@")[0] == stored:
        return True
    plugin: type[QuantMethod] = registry.load("quantization", requested, where="--quantization")
    return stored in plugin.stored_as


def stored_quantization(model: ModelSpec) -> str | None:
    """Return the checkpoint's own quantization method, or None. Raises: ConfigError."""
    stored = model.hf_config.get("quantization_config")
    if not stored:
        return None
    method = stored.get("quant_method") if isinstance(stored, dict) else None
    if not isinstance(method, str):
        raise ConfigError(
            "quantization_config names no quant_method.", where=str(Path(model.path, "config.json"))
        )
    return method


def reads_tokenizer(mode: str, path: Path) -> bool:
    """Return whether a tokenizer plugin reads the path: the one of this name, or any for "auto"."""
    if mode in NO_CHOICE:
        return bool(_fitting("tokenizer", registry.entries("tokenizer"), str(path)))
    plugin = registry.load("tokenizer", mode, where="--tokenizer-mode")
    return not reasons_against(plugin, str(path))


def _fitting(kind: str, entries: Iterable[registry.Entry], query: Any) -> list[registry.Entry]:
    """Return the entries with plugins that are usable and fit, highest rank first."""
    found: list[tuple[int, registry.Entry]] = []
    for entry in entries:
        try:
            plugin = registry.admin.load_entry(entry)
        except PluginError as error:
            log.debug("%s %s is not asked: %s", kind, entry.id, error)
            continue
        if not reasons_against(plugin, query):
            found.append((-plugin.auto_rank, entry))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def _load_format(load: LoadConfig, path: str) -> str:
    """Return the load format's name. If "auto" does not know the files, another package may.

    Other packages are tried last. If none fits, "auto" stays and reports what is missing.
    """
    name = load.load_format
    if name not in NO_CHOICE:
        return name
    files = Checkpoint(path=path, ignore_patterns=load.ignore_patterns)
    own = registry.load("load_format", AUTO)
    if not reasons_against(own, files):
        return AUTO
    entries = registry.entries("load_format")
    others = [entry for entry in entries if not entry.is_own]
    fitting = _fitting("load_format", others, files)
    if not fitting:
        return AUTO
    log.info("load_format auto: %s, whose files these are.", fitting[0].id)
    return fitting[0].id


def select_load_format(
    load: LoadConfig, plugins: PluginConfig, origins: Mapping[str, str], path: str
) -> Selection:
    """Return the load format for the weights at `path`, with options from flags.

    Raises: ConfigError naming the flag, for an option that the format does not have.
    """
    given = load.model_loader_extra_config
    options = {**plugins.options_of("load_format"), **given}
    name = load.safetensors_load_strategy
    strategy = str(registry.admin.value_of("safetensors_load_strategy", name, where=STRATEGY))
    _lay_flag(options, load, origins, "safetensors_load_strategy", strategy)
    _lay_flag(options, load, origins, "pt_load_map_location", _places(load))
    _lay_flag(options, load, origins, "mmproj", load.mmproj)
    try:
        with _blaming("load_format", given, LOADER_OPTIONS):
            name = _load_format(load, path)
            return select("load_format", name, where="--load-format", options=options)
    except ConfigError as error:
        for field, (option, files) in _READER_FLAGS.items():
            if error.where == f"--plugin-options.load_format.{option}":
                raise ConfigError(
                    f'the load format "{load.load_format}" reads no {files} files.',
                    where=flags()[field].spelling,
                    fix="leave the flag out.",
                ) from error
        raise


def _lay_flag(
    options: dict[str, Any], load: LoadConfig, origins: Mapping[str, str], field: str, value: Any
) -> None:
    """Set a load-format option from a flag, unless the flag has its default.

    Mutates: options. Raises: ConfigError if the option is given too, with another value.
    """
    option, _ = _READER_FLAGS[field]
    if field not in origins:
        return
    if options.get(option, value) != value:
        raise ConfigError(
            f"asks for {json.dumps(value)}, but the option {option} of the load format for "
            f"{json.dumps(options[option])}.",
            where=flags()[field].spelling,
            fix="leave one of them out.",
        )
    if option in options or getattr(load, field) != flags()[field].default:
        options[option] = value


def _places(load: LoadConfig) -> dict[str, str]:
    """Return the devices that torch.save files are loaded to. Raises: ConfigError for an invalid
    one."""
    places = dict(load.pt_load_map_location)
    for stored, device in places.items():
        if not isinstance(device, str):
            raise ConfigError(
                f"{device!r} is not a device.",
                where=f"{flags()['pt_load_map_location'].spelling}.{stored}",
                fix="give the name of one, such as cpu or cuda:0.",
            )
    return places


@contextmanager
def _blaming(kind: str, options: Mapping[str, Any], flag: str) -> Iterator[None]:
    """Make errors about these options name the flag that gave them."""
    try:
        yield
    except ConfigError as error:
        for name in options:
            if error.where == f"--plugin-options.{kind}.{name.replace('-', '_')}":
                error.where = f"{flag}.{name}"
        raise


def select_kv_policy(
    cache: CacheConfig, plugins: PluginConfig, defaults: PlatformDefaults
) -> Selection:
    """Return the KV policy that is named, or the platform's, or the kind's default."""
    name = cache.kv_policy or defaults.kv_policy or registry.KINDS["kv_policy"].default
    options = plugins.options_of("kv_policy")
    return select("kv_policy", str(name), where="--kv-policy", options=options)


def select_router(parallel: ParallelConfig, plugins: PluginConfig) -> Selection:
    """Return the router that distributes requests over several engines."""
    options = plugins.options_of("router")
    name = parallel.data_parallel_router
    return select("router", name, where="--data-parallel-router", options=options)


def select_executor(
    parallel: ParallelConfig, plugins: PluginConfig, defaults: PlatformDefaults, num_ranks: int = 1
) -> Selection:
    """Return the executor that is named. By default, one rank uses the platform's or the kind's
    executor, and several ranks use one process each."""
    spec = parallel.distributed_executor_backend
    usual = defaults.executor or registry.KINDS["executor"].default
    if num_ranks > 1:
        usual = registry.admin.own("executor", PROCESSES)
    name = usual if spec in NO_CHOICE else spec
    options = plugins.options_of("executor")
    nsight_options = {NSIGHT_OPTION: True} if parallel.ray_workers_use_nsight else {}
    where = "--distributed-executor-backend"
    try:
        return select("executor", str(name), where=where, options={**options, **nsight_options})
    except ConfigError as error:
        if nsight_options and error.where == f"--plugin-options.executor.{NSIGHT_OPTION}":
            raise ConfigError(
                f"the executor {name} does not run Ray's workers.",
                where="--ray-workers-use-nsight",
                fix=f"use {where} ray, or leave the flag out.",
            ) from error
        raise


def select_worker(
    parallel: ParallelConfig,
    plugins: PluginConfig,
    engine: EngineConfig,
    defaults: PlatformDefaults,
) -> Selection:
    """Return the requested worker, or the platform's."""
    spec = parallel.worker_cls
    options = {**engine.additional_config, **plugins.options_of("worker")}
    name = defaults.worker if spec in NO_CHOICE else spec
    with _blaming("worker", engine.additional_config, "--additional-config"):
        return select("worker", name, where="--worker-cls", options=options)


def select_logits_processors(
    model_config: ModelConfig, plugins: PluginConfig
) -> tuple[Selection, ...]:
    """Return the installed processors and those that the flag names."""
    chosen = {picked.target: picked for picked in select_installed("logits_processor", plugins)}
    for spec in model_config.logits_processors:
        picked = select("logits_processor", spec, where="--logits-processors")
        chosen.setdefault(picked.target, picked)
    return tuple(chosen.values())


def select_installed(kind: str, plugins: PluginConfig) -> tuple[Selection, ...]:
    """Return all installed plugins of a kind. A broken one is left out with a warning, since the
    user did not request it."""
    options = plugins.options_of(kind)
    chosen: dict[str, Selection] = {}
    for entry in registry.entries(kind):
        try:
            picked = select(kind, entry.id, options=options.get(entry.name))
        except PluginError as error:
            log.warning("The %s %s is left out: %s", kind.replace("_", " "), entry.id, error)
            continue
        chosen[picked.target] = picked
    return tuple(chosen.values())


def select_stat_loggers(
    observability: ObservabilityConfig, plugins: PluginConfig
) -> tuple[Selection, ...]:
    """Return the stat loggers, including those for traces. Raises: ConfigError, PluginError"""
    flags_about = {stat_loggers.TRACES: stat_loggers.TRACES_FLAG}
    return tuple(
        select("stat_logger", name, where=flags_about.get(name, "--stat-loggers"), options=options)
        for name, options in stat_loggers.stat_loggers(observability, plugins).items()
    )
