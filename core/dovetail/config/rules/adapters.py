"""Adapters: the slots for LoRA and prompt adapters, those to load at the start, and how to find
others."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dovetail import registry
from dovetail.config.checkpoint.sources.adapter_path import find_adapter
from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.config.config import Config, flags
from dovetail.config.rules.selections import select
from dovetail.config.sections.lora import LoRAConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.config.sections.prompt_adapter import PromptAdapterConfig
from dovetail.errors import ConfigError, PluginError
from dovetail.interfaces.adapter_resolver import ResolverFacts
from dovetail.interfaces.data.adapter_spec import AdapterSearch, AdapterSource, AdapterSpec
from dovetail.interfaces.data.spec import NO_TOKENIZER, ModelSpec, Selection
from dovetail.json_values import json_value

log = logging.getLogger(__name__)

ENABLE, ENABLE_PROMPT = "--enable-lora", "--enable-prompt-adapter"
MODULES, PROMPT_MODULES = "--lora-modules", "--prompt-adapters"
RESOLVERS, FOLDER_FLAG = "--lora-resolvers", "--lora-resolver-cache-dir"
MEDIA_LORAS, LONG = "--default-mm-loras", "--long-lora-scaling-factors"
PROMPT = "prompt"
"""Capability of adapters that put vectors before a prompt."""
FOLDER = "folder"
"""The resolver that --lora-resolver-cache-dir configures."""

_NAMING = {
    ENABLE: ("lora_modules", "lora_resolvers", "lora_resolver_cache_dir", "default_mm_loras"),
    ENABLE_PROMPT: ("prompt_adapters",),
}
"""Flag -> flags that name adapters, which need it."""
_SIZING = {
    ENABLE: (
        "max_loras",
        "max_lora_rank",
        "max_cpu_loras",
        "lora_dtype",
        "lora_extra_vocab_size",
        "long_lora_scaling_factors",
        "enable_lora_bias",
        "fully_sharded_loras",
        "allow_runtime_lora_updating",
    ),
    ENABLE_PROMPT: ("max_prompt_adapters", "max_prompt_adapter_token"),
}
"""Flag -> flags that have no effect without it; they only cause a warning."""
_SETTLED = {
    "fully_sharded_loras": "each matrix of an adapter is divided as its layer is",
}
"""Flags without effect -> the reason."""


def adapter_spec(
    lora: LoRAConfig,
    prompt_adapter: PromptAdapterConfig,
    plugins: PluginConfig,
    model: ModelSpec,
    tokenizer: Selection,
) -> AdapterSpec | None:
    """Return the limits for adapters, None if none are served. `tokenizer` is the plugin for the
    model's tokenizer, and for adapters that add tokens. Raises: ConfigError"""
    if not (lora.enable_lora or prompt_adapter.enable_prompt_adapter):
        return None
    num_prompt = prompt_adapter.max_prompt_adapters if prompt_adapter.enable_prompt_adapter else 0
    num_lora = lora.max_loras if lora.enable_lora else 0
    num_host = (lora.max_cpu_loras or lora.max_loras) if lora.enable_lora else 0
    return AdapterSpec(
        max_slots=num_lora + num_prompt,
        max_rank=lora.max_lora_rank if lora.enable_lora else 0,
        max_host=num_host + num_prompt,
        dtype=registry.admin.value_of("lora_dtype", lora.lora_dtype)
        or model.weight_dtype
        or model.dtype,
        max_prompt_slots=num_prompt,
        max_prompt_tokens=prompt_adapter.max_prompt_adapter_token if num_prompt else 0,
        takes_bias=lora.enable_lora_bias,
        rope_factors=long_factors(lora),
        max_added_tokens=lora.lora_extra_vocab_size if lora.enable_lora else 0,
        tokenizer=None if tokenizer.name == NO_TOKENIZER else tokenizer,
        methods=_methods(prompt_adapter, plugins),
    )


def long_factors(lora: LoRAConfig) -> tuple[float, ...]:
    """Return the linear RoPE scalings that adapters may have; a flag's value may be a comma list.
    Raises: ConfigError"""
    if not lora.enable_lora:
        return ()
    words = ",".join(lora.long_lora_scaling_factors).split(",")
    found = []
    for word in filter(None, map(str.strip, words)):
        try:
            factor = float(word)
        except ValueError:
            factor = 0.0
        if not 1.0 <= factor < float("inf"):
            raise ConfigError(
                f"{word!r} is not a factor.", where=LONG, fix="give numbers from 1, as in 4 8."
            )
        found.append(factor)
    return tuple(dict.fromkeys(found))


def check_adapter_flags(config: Config) -> None:
    """Log flags that have no effect. Raises: ConfigError for flags that name adapters although none
    are served, and for fewer adapters in host memory than slots"""
    lora = config.lora
    prompts = config.prompt_adapter.enable_prompt_adapter
    is_on = {ENABLE: lora.enable_lora, ENABLE_PROMPT: prompts}
    for switch, names in _NAMING.items():
        for name in names:
            if not is_on[switch] and config.value(name):
                raise ConfigError(
                    "names adapters, and none are served.",
                    where=flags()[name].spelling,
                    fix=f"give {switch} too, or leave it out.",
                )
    for switch, names in _SIZING.items():
        for name in names:
            flag = flags()[name]
            if not is_on[switch] and config.value(name) != flag.default:
                log.warning("%s has no effect: it needs %s", flag.spelling, switch)
    for name, why in _SETTLED.items():
        flag = flags()[name]
        if is_on[ENABLE] and config.value(name) not in (flag.default, 0):
            log.warning("%s has no effect: %s", flag.spelling, why)
    if lora.enable_lora and lora.max_cpu_loras is not None and lora.max_cpu_loras < lora.max_loras:
        raise ConfigError(
            f"{lora.max_cpu_loras} adapters in host memory are fewer than the {lora.max_loras} of "
            "a step (--max-loras), which are read into it first.",
            where="--max-cpu-loras",
            fix=f"give at least {lora.max_loras}, or leave it out.",
        )


def first_adapters(
    lora: LoRAConfig, prompt_adapter: PromptAdapterConfig, hub: Hub, served: Sequence[str]
) -> tuple[AdapterSource, ...]:
    """Return the adapters to load at the start. Raises: ConfigError for one without a folder, or
    with a name that is already in use"""
    found: dict[str, AdapterSource] = {}
    for text, flag in _named(lora, prompt_adapter):
        source = _source(text, flag)
        if source.name in served or source.name in found:
            other = "another adapter" if source.name in found else "the model"
            raise ConfigError(
                f'"{source.name}" is the name of {other} too.',
                where=flag,
                fix="give each adapter its own name.",
            )
        folder = find_adapter(source.path, hub, where=f"{flag} {source.name}")
        found[source.name] = AdapterSource(name=source.name, path=str(folder), base=source.base)
    return tuple(found.values())


def adapter_names(lora: LoRAConfig, prompt_adapter: PromptAdapterConfig) -> tuple[str, ...]:
    """Return the names of the adapters to load at the start. Raises: ConfigError"""
    return tuple(_source(text, flag).name for text, flag in _named(lora, prompt_adapter))


def adapter_search(
    model_config: ModelConfig,
    lora: LoRAConfig,
    plugins: PluginConfig,
    served: Sequence[str],
    hub: Hub,
    model: ModelSpec,
) -> AdapterSearch:
    """Return how to find adapters that are not loaded at the start. Raises: PluginError;
    ConfigError for a resolver that cannot be created"""
    if not lora.enable_lora:
        return AdapterSearch()
    names = list(lora.lora_resolvers)
    options = plugins.options_of("adapter_resolver")
    if lora.lora_resolver_cache_dir is not None:
        folder = {"path": lora.lora_resolver_cache_dir, **options.get(FOLDER, {})}
        options = {**options, FOLDER: folder}
        names = names if FOLDER in names else [FOLDER, *names]
    resolvers = tuple(
        select("adapter_resolver", name, where=RESOLVERS, options=options.get(name, {}))
        for name in dict.fromkeys(names)
    )
    given = model_config.model
    base_names = tuple(dict.fromkeys((*served, *([given] if given else []))))
    facts = ResolverFacts(base_names=base_names, model_path=model.path)
    for selection in resolvers:  # API processes create them too; errors show up here
        registry.make(selection, facts)
    return AdapterSearch(resolvers=resolvers, base_names=base_names, hub_cache=hub.cache or "")


def _methods(prompt_adapter: PromptAdapterConfig, plugins: PluginConfig) -> tuple[Selection, ...]:
    """Return the plugins that read adapters. Raises: ConfigError if none reads prompt adapters"""
    options = plugins.options_of("adapter")
    if prompt_adapter.enable_prompt_adapter and not _has_prompt_method():
        raise ConfigError(
            f'no adapter plugin that is installed has the capability "{PROMPT}".',
            where=ENABLE_PROMPT,
            fix="leave it out, or install one; `dovetail plugins list adapter` lists them.",
        )
    return tuple(
        select("adapter", name, where=MODULES, options=options.get(name, {}))
        for name in registry.names("adapter")
    )


def _has_prompt_method() -> bool:
    for name in registry.names("adapter"):
        try:
            if PROMPT in registry.load("adapter", name, where=ENABLE_PROMPT).capabilities:
                return True
        except PluginError as error:
            log.warning("the adapter plugin %s is left out: %s", name, error)
    return False


def _named(lora: LoRAConfig, prompt_adapter: PromptAdapterConfig) -> Iterator[tuple[str, str]]:
    """Yield (text, flag) for each adapter to load at the start."""
    for flag, given in (
        (MODULES, lora.lora_modules),
        (PROMPT_MODULES, prompt_adapter.prompt_adapters),
    ):
        yield from ((text, flag) for text in given)
    of_media = lora.default_mm_loras.items()
    yield from ((f"{kind}={path}", MEDIA_LORAS) for kind, path in of_media)


def _source(text: str, flag: str) -> AdapterSource:
    """Return the adapter given as NAME=PATH or as a JSON object. Raises: ConfigError"""
    if text.lstrip().startswith("{"):
        return _from_object(text, flag)
    name, _, path = text.partition("=")
    if not name.strip() or not path.strip():
        raise ConfigError(
            f"{text!r} does not say which name an adapter gets.",
            where=flag,
            fix='write NAME=PATH, or {"name": ..., "path": ..., "base_model_name": ...}.',
        )
    return AdapterSource(name=name.strip(), path=path.strip())


def _from_object(text: str, flag: str) -> AdapterSource:
    try:
        given: Mapping[str, Any] = json_value(text)
        name, path = given["name"], given["path"]
        base = given.get("base_model_name") or ""
        if not all(isinstance(word, str) for word in (name, path, base)) or not (name and path):
            raise ValueError("name, path and base_model_name are texts")
    except (ValueError, KeyError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{text} does not describe an adapter: {what}.",
            where=flag,
            fix='write {"name": ..., "path": ..., "base_model_name": ...}.',
        ) from error
    return AdapterSource(name=name, path=path, base=base)
