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

from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.checkpoint.sources.weights_check import is_whole_model
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.interfaces.data.media_settings import IMAGE
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.apis.ollama.response import written_time
from dovetail_plugins.apis.ollama.weights import weights_of
from dovetail_plugins.gguf.reading.file import read_head
from dovetail_plugins.modelfile.fields import parameters_of
from dovetail_plugins.modelfile.model import Modelfile
from dovetail_plugins.modelfile.writing import parameter_lines, write

GGUF_TEMPLATE = "tokenizer.chat_template"
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
        "capabilities": _capabilities(spec, shown.template),
        "modified_at": _modified_at(model.path),
    }


def _modelfile(spec: EngineSpec, model: StoredModel, own: Modelfile | None) -> Modelfile:
    own = own or Modelfile(base=str(model.path))
    path = Path(spec.run.model.path)
    return replace(
        own,
        parameters={**parameters_of(spec.default_sampling), **own.parameters},
        template=own.template or template_of(path),
        licenses=own.licenses or tuple(_licenses(path)),
    )


def template_of(path: Path) -> str:
    """Return the chat template in a model's files; empty if there is none. Raises: ConfigError"""
    if path.is_file():
        found: Any = read_head(path).settings.get(GGUF_TEMPLATE)
    elif (file := path / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    else:
        found = read_json(path / "tokenizer_config.json", is_required=False).get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


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


def _capabilities(spec: EngineSpec, template: str) -> list[str]:
    """Return what the model can do, as far as its files show it without a tokenizer."""
    if spec.run.pooling is not None:
        return ["embedding"]
    can = {
        "tools": "tools" in template or ".Tools" in template,
        "vision": spec.media is not None and IMAGE in spec.media.kinds,
    }
    return ["completion", *(name for name, is_able in can.items() if is_able)]


def _modified_at(path: Path) -> str:
    return written_time(datetime.fromtimestamp(path.stat().st_mtime, UTC))
