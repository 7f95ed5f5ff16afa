"""`dovetail config check`: every start-up check that needs no weights, one line each.

The order is that of `dovetail serve`. It stops at the first fault, with its cause and its fix. The
model is created without memory for weights, in a process of its own, as `dovetail inspect` does.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.commands._serve_flags import SERVE_FLAGS, add_serve_arguments

if TYPE_CHECKING:
    from dovetail.config.config import Config
    from dovetail.interfaces.data.selection import Selection
    from dovetail.interfaces.data.spec import EngineSpec
    from dovetail.server.launch.settings import Preview


class ConfigCheckCommand(Command):
    """`dovetail config check`."""

    info = Info(summary="check the settings, the model's files and the address without starting")
    common = SERVE_FLAGS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of serve. Mutates: parser."""
        add_serve_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Run the checks; return the exit status. Raises: ConfigError for the first fault"""
        from dovetail.config.parse.parse_config import parse_config
        from dovetail.config.report.show import DEMO
        from dovetail.server.families import choose_apis
        from dovetail.server.launch.serve import with_checked_frontend
        from dovetail.server.launch.sockets import listening, url_of

        models = list(args.model_tag)
        args.model_tag = models[0] if models else None
        config = parse_config(args)
        given = sum(origin != DEMO for origin in config.origins.values())
        _say("settings", f"{given} given, all known and in range")
        config = with_checked_frontend(config)
        apis = choose_apis(config)
        _say("HTTP flags", _frontend_text(config))
        for name, own in _models(config, models):
            if name:
                print(f"{name}:", flush=True)
            _check_model(own)
        asyncio.run(_open_apis(apis, config))
        _say("APIs", "the folders and servers of tools that they need can be used")
        with listening(config.frontend) as sock:
            _say(
                "address",
                f"{url_of(sock, has_tls=config.frontend.ssl_certfile is not None)} is free",
            )
        return 0


def _models(config: Config, models: Sequence[str]) -> Sequence[tuple[str, Config]]:
    """Return (name, config) of the models that `dovetail serve` would serve; the name is empty for
    a single model. Raises: ConfigError"""
    if len(models) < 2 and config.gateway.models is None:
        from dovetail.config.rules.one_model import check_one_model

        check_one_model(config.origins)
        return [("", config)]
    from dovetail_plugins.gateway.serve import checked_entries

    return [(entry.name, entry.config) for entry in checked_entries(config, models)]


def _check_model(config: Config) -> None:
    """Check the requirements of one model's engine. Raises: ConfigError"""
    from dovetail.config.resolve import resolve
    from dovetail.engine.ipc.transport import make_socket_folder
    from dovetail_plugins.inspect.look_ahead import look_ahead, make_parts

    spec = resolve(config)
    _say("model", _model_text(spec))
    _say("plugins", _plugins_text(spec))
    _say("memory", _memory_text(spec))
    make_parts(spec)
    ahead = look_ahead(config, spec)
    folder = make_socket_folder(spec.socket_dir)
    folder.rmdir()
    _say("socket", f"the engine's can be made in {folder.parent}")
    _say("tokenizer", _tokenizer_text(spec, ahead))
    _say("chat template", _template_text(config, ahead))
    _say("parsers", _parsers_text(ahead))
    _say("model class", _class_text(spec))


async def _open_apis(apis: Sequence[Selection], config: Config) -> None:
    """Open and close the folders and tool servers that API families need. Raises: ConfigError"""
    from dovetail.server.families import build_apis, opened_apis

    async with opened_apis(build_apis(apis), config.frontend):
        pass


def _say(what: str, text: str) -> None:
    print(f"OK  {what + ':':<15}{text}", flush=True)


def _frontend_text(config: Config) -> str:
    frontend = config.frontend
    tls = "TLS" if frontend.ssl_certfile else "no TLS"
    keys = f"{len(frontend.api_key)} API keys" if frontend.api_key else "no API key"
    keys += f", those of {frontend.api_keys_file}" if frontend.api_keys_file else ""
    return f"{tls}, {keys}, {len(frontend.middleware)} middleware"


def _model_text(spec: EngineSpec) -> str:
    run = spec.run
    stored = run.model.weight_dtype or run.model.dtype
    weights = "no weights are read" if run.load_format.name == "dummy" else "its files are whole"
    return (
        f"{run.model.architecture} at {run.model.path}, {weights}; {stored}, "
        f"quantization {run.quantization.name}, {run.max_model_tokens} tokens"
    )


def _plugins_text(spec: EngineSpec) -> str:
    run = spec.run
    return (
        f"device {run.device}, attention {run.attention.name}, scheduler {spec.scheduler.name}, "
        f"executor {spec.executor.name}, load format {run.load_format.name}"
    )


def _memory_text(spec: EngineSpec) -> str:
    cache = spec.cache
    if cache.num_blocks is not None:
        size = f"{cache.num_blocks} blocks"
    elif cache.memory_bytes is not None:
        size = f"{cache.memory_bytes / 2**20:.4g} MiB"
    else:
        size = f"{cache.memory_share:.0%} of the device's memory less weights and steps"
    return f"KV cache of {size} ({spec.run.kv_dtype}), up to {spec.schedule.max_rows} requests"


def _tokenizer_text(spec: EngineSpec, ahead: Preview) -> str:
    if not ahead.facts.vocab_size:
        return "none: requests carry token ids"
    return f"{spec.tokenizer.name} at {spec.tokenizer_path}, {ahead.facts.vocab_size} tokens"


def _template_text(config: Config, ahead: Preview) -> str:
    if not ahead.renderer.can_render:
        return "none: /v1/chat/completions will answer with an error"
    if not (config.frontend.chat_template or ahead.facts.chat_template):
        return f"none; {ahead.renderer.selection.name} renders conversations"
    whose = "given by --chat-template" if config.frontend.chat_template else "the model's own"
    return f"{whose}, compiles"


def _class_text(spec: EngineSpec) -> str:
    """Return what creating the model has shown. Raises: ConfigError that its engine would raise"""
    from dovetail_plugins.inspect.trial import refusal

    name = spec.run.model_plugin.name
    if find_spec("torch") is None:
        return f"{name} is not tried: torch is not installed"
    refused = refusal(spec.run)
    if refused is not None:
        raise refused
    return f"{name} reads the model's settings, and its weights if they are not quantized"


def _parsers_text(ahead: Preview) -> str:
    tool, reasoning = ahead.parsers.tool, ahead.parsers.reasoning
    names = (tool.name if tool else "none", reasoning.name if reasoning else "none")
    return f"tool calls {names[0]}, reasoning {names[1]}"
