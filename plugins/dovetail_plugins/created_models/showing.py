"""What is known of a model that lies on this machine, in the words of Ollama's /api/show.

It reads the model's files, and loads no weights. Source: Ollama's API reference, "Show Model
Information".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.sources.weights_check import is_whole_model
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.apis.ollama.response import written_time
from dovetail_plugins.apis.ollama.weights import weights_of
from dovetail_plugins.created_models.abilities import (
    DEFAULT,
    stored_capabilities,
    templates_of,
)
from dovetail_plugins.gguf.reading.file import read_head
from dovetail_plugins.modelfile.fields import parameters_of
from dovetail_plugins.modelfile.model import Modelfile
from dovetail_plugins.modelfile.writing import parameter_lines, write

LICENSES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")
MAX_LICENSE_BYTES = 1 << 20


def modelfile_of(config: Config, model: StoredModel, own: Modelfile | None) -> Modelfile:
    """Return a model and its settings as a Modelfile. `own` is that of a created model. Raises:
    ConfigError for a model that cannot be served"""
    return _modelfile(resolve(config), model, own)


def facts_of(config: Config, model: StoredModel, own: Modelfile | None) -> dict[str, Any]:
    """Return the answer of /api/show. Raises: as `modelfile_of`"""
    spec = resolve(config)
    shown = _modelfile(spec, model, own)
    return {
        "modelfile": write(shown),
        "parameters": parameter_lines(shown.parameters),
        "template": shown.template,
        "system": shown.system,
        "license": "\n".join(shown.licenses),
        "messages": [{"role": one.role, "content": one.content} for one in shown.messages],
        "details": _details(spec),
        "model_info": _sizes(spec),
        "capabilities": stored_capabilities(config, spec).for_ollama(),
        "modified_at": _modified_at(model.path),
    }


def _modelfile(spec: EngineSpec, model: StoredModel, own: Modelfile | None) -> Modelfile:
    own = own or Modelfile(base=str(model.path))
    path = Path(spec.run.model.path)
    return replace(
        own,
        parameters={**parameters_of(spec.default_sampling), **own.parameters},
        template=own.template or templates_of(path).get(DEFAULT, ""),
        licenses=own.licenses or tuple(_licenses(path)),
    )


def _licenses(path: Path) -> list[str]:
    if path.is_file():
        settings: Mapping[str, Any] = read_head(path).settings
        found = settings.get("general.license")
        return [found] if isinstance(found, str) else []
    files = (path / name for name in LICENSES)
    return [_start_of(file) for file in files if file.is_file()]


def _start_of(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(MAX_LICENSE_BYTES).decode("utf-8", "replace")


def _details(spec: EngineSpec) -> dict[str, Any]:
    weights, family = weights_of(spec.run), _family(spec)
    return {
        "parent_model": "",
        "format": "gguf" if is_whole_model(Path(spec.run.model.path)) else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": weights.parameter_size,
        "quantization_level": weights.quantization_level,
    }


def _family(spec: EngineSpec) -> str:
    model = spec.run.model
    return str(model.hf_config.get("model_type") or model.architecture)


def _sizes(spec: EngineSpec) -> dict[str, Any]:
    model, family = spec.run.model, _family(spec)
    sizes = {
        "context_length": spec.run.max_model_tokens,
        "embedding_length": model.hidden_size,
        "block_count": model.num_layers,
        "vocab_size": model.vocab_size,
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
        "attention.key_length": model.head_size,
    }
    named = {f"{family}.{name}": size for name, size in sizes.items()}
    return {"general.architecture": family} | named


def _modified_at(path: Path) -> str:
    return written_time(datetime.fromtimestamp(path.stat().st_mtime, UTC))
