"""Information about the model in Ollama's format: the list, the facts, the loaded models.

Only the served names exist: the model is chosen at server start. Source: Ollama's API reference.
"""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from starlette.responses import Response

from dovetail.config.checkpoint.sources.weights_check import is_whole_model, weights_bytes
from dovetail.server.endpoint import App, ServerOf
from dovetail.version import __version__
from dovetail_plugins.apis._capabilities import capabilities_of_server
from dovetail_plugins.apis.ollama.protocol import OllamaShowRequest
from dovetail_plugins.apis.ollama.response import encoded, written_time
from dovetail_plugins.apis.ollama.weights import weights_of
from dovetail_plugins.modelfile.fields import parameters_of
from dovetail_plugins.modelfile.model import ExampleMessage, Modelfile
from dovetail_plugins.modelfile.writing import parameter_lines, write

LATEST = ":latest"
"""The tag that clients append to a name without one."""
NEVER = "9999-12-31T23:59:59Z"
"""The time at which the model is unloaded."""
MAX_KNOWN = 4
LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "USE_POLICY.md")
MAX_LICENSE_BYTES = 1 << 18


async def meant_model(server: App, requested: str) -> str:
    """Return the served name for a requested one; the tag `latest` may be missing or added. Raises:
    as `App.model_name`"""
    bare = requested.removesuffix(LATEST)
    return await server.model_name(
        bare if requested not in server.engine.spec.model_names else requested
    )


async def list_models(server: ServerOf) -> dict[str, Any]:
    """Return the served names in the format of Ollama's list of models."""
    details = await _details(server)
    return {"models": [_entry(server, name, details) for name in await _names(server)]}


async def list_loaded(server: ServerOf) -> dict[str, Any]:
    """Return the served names in the format of Ollama's list of loaded models. They stay loaded."""
    run = server.engine.spec.run
    size = _weights_bytes(run.model.path)
    loaded = {
        "expires_at": NEVER,
        "size_vram": 0 if run.device == "cpu" else size,
        "context_length": run.max_model_tokens,
    }
    details = await _details(server)
    return {"models": [_entry(server, name, details) | loaded for name in await _names(server)]}


async def _names(server: App) -> list[str]:
    """Return the served names, with adapters after the model's own."""
    adapters = await server.adapters.all()
    return [*server.engine.spec.model_names, *(source.name for source in adapters)]


async def show_model(body: OllamaShowRequest, server: ServerOf) -> Response:
    """Return the facts of the model: its sizes, its settings, its capabilities."""
    name = await meant_model(server, body.model)
    adapter = server.engine.spec.adapter_of(name)
    base = server.engine.spec.model_names[0] if adapter else name
    shown = await asyncio.to_thread(_modelfile, server, base, adapter)
    fields = {
        "modelfile": write(shown),
        "parameters": parameter_lines(shown.parameters),
        "template": shown.template,
        "system": shown.system,
        "license": "\n".join(shown.licenses),
        "messages": [{"role": one.role, "content": one.content} for one in shown.messages],
        "details": {**await _details(server), "parent_model": base if adapter else ""},
        "model_info": _model_info(server) | await _vocabulary(server, body),
        "capabilities": capabilities_of_server(server).for_ollama(),
        "modified_at": _modified_at(server),
    }
    return Response(encoded(fields), media_type="application/json")


def _modelfile(server: App, base: str, adapter: str) -> Modelfile:
    """Return the model and its settings as a Modelfile."""
    options = server.text.renderer.selection.options
    turns = options.get("messages", ())
    return Modelfile(
        base=base,
        parameters=parameters_of(server.engine.spec.default_sampling),
        template=server.text.renderer.source,
        system=options.get("system", ""),
        adapters=(adapter,) if adapter else (),
        licenses=_licenses(server.engine.spec.run.model.path),
        messages=tuple(ExampleMessage(turn["role"], turn["content"]) for turn in turns),
    )


@lru_cache(MAX_KNOWN)
def _licenses(path: str) -> tuple[str, ...]:
    """Return the licence texts in a model's folder, which do not change while it is served."""
    folder = Path(path)
    found = (folder / name for name in LICENSES)
    texts = (_start_of(file) for file in found if file.is_file())
    return tuple(texts)


def _start_of(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(MAX_LICENSE_BYTES).decode("utf-8", "replace")


async def _vocabulary(server: App, body: OllamaShowRequest) -> dict[str, Any]:
    """Return the tokens' names for a verbose answer; as in Ollama's, null for another."""
    if not server.engine.spec.has_tokenizer:
        return {}
    tokenizer = server.engine.tokenizer
    ids = range(tokenizer.facts().vocab_size if body.verbose else 0)
    tokens = await asyncio.to_thread(tokenizer.names, ids) if ids else None
    return {"tokenizer.ggml.tokens": tokens}


async def show_version() -> dict[str, str]:
    """Return dovetail's version."""
    return {"version": __version__}


def _entry(server: App, name: str, details: dict[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(f"{server.fingerprint} {name}".encode()).hexdigest()
    return {
        "name": name,
        "model": name,
        "modified_at": _modified_at(server),
        "size": _weights_bytes(server.engine.spec.run.model.path),
        "digest": digest,
        "details": details,
        "capabilities": capabilities_of_server(server).for_ollama(),
    }


async def _details(server: App) -> dict[str, Any]:
    run = server.engine.spec.run
    family = _family(server)
    weights = await asyncio.to_thread(weights_of, run)
    return {
        "parent_model": "",
        "format": "gguf" if is_whole_model(Path(run.model.path)) else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": weights.parameter_size,
        "quantization_level": weights.quantization_level,
    }


def _family(server: App) -> str:
    model = server.engine.spec.run.model
    return str(model.hf_config.get("model_type") or model.architecture)


def _model_info(server: App) -> dict[str, Any]:
    model, family = server.engine.spec.run.model, _family(server)
    sizes = {
        "context_length": server.engine.spec.run.max_model_tokens,
        "embedding_length": model.hidden_size,
        "block_count": model.num_layers,
        "vocab_size": model.vocab_size,
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
        "attention.key_length": model.head_size,
    }
    return {
        "general.architecture": family,
        **{f"{family}.{name}": size for name, size in sizes.items()},
    }


def _modified_at(server: App) -> str:
    path = Path(server.engine.spec.run.model.path)
    changed_s = path.stat().st_mtime if path.exists() else server.created_s
    return written_time(datetime.fromtimestamp(changed_s, UTC))


@lru_cache(MAX_KNOWN)
def _weights_bytes(path: str) -> int:
    """Return the size of the model's weight files, which do not change while it is served."""
    return weights_bytes(path)
