"""Checks of a config that need no checkpoint: flags, choices, plugin options and parsers.

The first caller of `checked` runs them once; `resolve` accepts only a checked config.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail import registry
from dovetail.config.compat.unsupported_flags import UNSUPPORTED_FLAGS, passes
from dovetail.config.config import Config, flags
from dovetail.config.rules.model import demo
from dovetail.config.rules.model.chat_template import template_file
from dovetail.config.rules.model.model_impl import names_model
from dovetail.config.rules.multimodal.settings import media_settings
from dovetail.config.rules.parallel.engines import check_engines
from dovetail.config.rules.selections import NO_CHOICE, TAKEN_OVER
from dovetail.config.sections.field import Flag
from dovetail.config.sections.frontend import NO_PARSER, FrontendConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError

log = logging.getLogger(__name__)


def checked(config: Config) -> Config:
    """Return the config, marked as checked. Raises: ConfigError for the first fault.

    Loads the plugin files that it names, since the choices may include their classes.
    """
    if config.is_checked:
        return config
    check_supported(config)
    load_plugin_files(config.frontend, config.plugin)
    check_frontend_flags(config.frontend, config.origins)
    check_choices(config)
    media_settings(config.multimodal)
    check_plugin_options(config)
    check_parsers(config.frontend)
    check_engines(config.parallel, config.frontend)
    return dataclasses.replace(config, is_checked=True)


def check_supported(config: Config) -> None:
    """Raise ConfigError for the first unsupported flag with a value that requests something."""
    for name in config.origins:
        row = UNSUPPORTED_FLAGS.get(name)
        if row is not None and not passes(flags()[name], row, config.value(name)):
            raise ConfigError(row.missing, where=_where(config.origins, name), fix=row.fix)


def _where(origins: Mapping[str, str], name: str) -> str:
    """Return the flag, with the file or variable that set it, for an error."""
    origin = origins.get(name, "command line")
    spelling = flags()[name].spelling
    return spelling if origin in ("command line", "call") else f"{spelling} (from {origin})"


def check_frontend_flags(frontend: FrontendConfig, origins: Mapping[str, str]) -> None:
    """Raise ConfigError for flags of the HTTP server that are contradictory or empty."""
    origin = origins.get("enable_auto_tool_choice")
    must_decide = frontend.enable_auto_tool_choice and origin not in (None, demo.ORIGIN)
    if must_decide and frontend.tool_call_parser == NO_PARSER:
        raise ConfigError(
            "automatic tool choice needs a tool parser.",
            where="--enable-auto-tool-choice",
            fix=f"leave --tool-call-parser {NO_PARSER} out, or name another one.",
        )
    keys = frontend.api_key
    if any(not key.strip() for key in keys) or ("api_key" in origins and not keys):
        raise ConfigError(
            "an API key is empty.",
            where="--api-key",
            fix="check the variable it was taken from, or leave the flag out.",
        )
    if frontend.chat_template:
        template_file(frontend.chat_template)


def load_plugin_files(frontend: FrontendConfig, plugins: PluginConfig) -> None:
    """Disable the plugins of --no-plugin, and import the files of the parser plugin flags."""
    for name in registry.admin.block(plugins.no_plugin):
        log.warning("--no-plugin %s: no plugin that is installed has this name.", name)
    for sentence in registry.admin.lost():
        log.warning("%s", sentence)
    for path in (frontend.tool_parser_plugin, frontend.reasoning_parser_plugin):
        if path:
            registry.admin.load_file(path)


def check_choices(config: Config) -> None:
    """Look up the given value of every flag with choices. Raises: PluginError naming the flag."""
    for name in config.origins:
        flag = flags()[name]
        if flag.meta.kind is not None and name not in UNSUPPORTED_FLAGS:
            _check_choice(flag, config.value(name))


def check_plugin_options(config: Config) -> None:
    """Raise ConfigError for options of an unknown kind, which would be silently dropped."""
    paths: dict[str, tuple[str, ...]] = {
        "stat_logger": config.observability.stat_loggers,
        "api": config.frontend.api,
        "adapter_resolver": config.lora.lora_resolvers,
    }
    for name, options in config.plugin.plugin_options.items():
        kind = name.replace("-", "_")
        if kind not in registry.KINDS:
            raise ConfigError(
                f'there is no plugin kind "{name}".',
                where="--plugin-options",
                fix="`dovetail plugins list` shows the kinds.",
            )
        if not isinstance(options, Mapping):
            raise ConfigError(
                f"{name} must hold options, not {options!r}.",
                where="--plugin-options",
                fix=f"write `--plugin-options.{name}.OPTION VALUE`.",
            )
        _check_names(registry.KINDS[kind], options, paths.get(kind, ()))


def _check_names(kind: registry.Kind, options: Mapping[str, Any], paths: Iterable[str]) -> None:
    """Raise ConfigError for options that no plugin of the kind would receive. `paths`: the class
    and file paths that the flag of the kind gives."""
    if kind.is_value:
        where = f"--plugin-options.{kind.name}"
        raise ConfigError("constants have no options.", where=where, fix="leave it out.")
    if not kind.has_named_options:
        return
    known = {*registry.names(kind.name), *paths}
    for name, given in options.items():
        if name not in known or not isinstance(given, Mapping):
            raise ConfigError(
                f'options of {kind.name} stand under a plugin\'s name, and "{name}" is none.',
                where=f"--plugin-options.{kind.name}.{name}",
                fix=f"write --plugin-options.{kind.name}.NAME.OPTION VALUE; names are "
                f"{', '.join(registry.names(kind.name))}.",
            )


def _check_choice(flag: Flag, value: Any) -> None:
    kind = registry.KINDS[str(flag.meta.kind)]
    if isinstance(value, Mapping):
        return  # settings that contain plugin names: checked when they are read
    specs = value if isinstance(value, tuple) else (value,)
    for spec in specs:
        is_auto = spec in NO_CHOICE and (spec != "auto" or kind.auto)
        is_word = spec in flag.meta.words.values()
        if is_auto or is_word or kind.is_open or str(spec) in TAKEN_OVER:
            continue
        is_model = kind.name == "model_impl" and names_model(str(spec))
        registry.find("model" if is_model else kind.name, str(spec), where=flag.spelling)


def check_parsers(frontend: FrontendConfig) -> None:
    """Load the chosen renderer and parsers: a broken one is reported before the engine starts."""
    parsers = {
        "renderer": (frontend.renderer, "--renderer"),
        "tool_parser": (frontend.tool_call_parser, "--tool-call-parser"),
        "reasoning_parser": (frontend.reasoning_parser, "--reasoning-parser"),
    }
    for kind, (name, flag) in parsers.items():
        if name not in (*NO_CHOICE, NO_PARSER):
            registry.load(kind, name, where=flag)
