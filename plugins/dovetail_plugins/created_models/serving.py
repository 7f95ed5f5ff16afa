"""Settings of a model that is served by its name and has a Modelfile, of this store or Ollama's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.sources.stores import Stores
from dovetail.config.config import Config
from dovetail.config.rules.checks import checked
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.model_store import StoredModel, WantedModel
from dovetail_plugins.created_models.names import full_name
from dovetail_plugins.created_models.store import CreatedStore
from dovetail_plugins.modelfile.fields import fields_of
from dovetail_plugins.modelfile.model import Modelfile
from dovetail_plugins.modelfile.stored import own_modelfile


def own_fields(
    own: Modelfile, model: StoredModel, aliases: list[str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a model with a Modelfile, and its aliases. With an adapter the names
    are the adapter's, which has no aliases: it gets several names."""
    fields = dict(fields_of(own, name=model.name).fields)
    if own.adapters:
        names = [model.name, *aliases]
        fields["lora_modules"] = [f"{name}={own.adapters[0]}" for name in names]
        aliases = []
    return fields, aliases


def as_created(config: Config) -> Config:
    """Return the config with the settings of the Modelfile of the model that --model names,
    unchanged if it has none. What the user sets wins. Raises: ConfigError for a created model whose
    files are gone"""
    found = _found(config)
    if found is None:
        return config
    model, own = found
    fields, aliases = own_fields(own, model, [str(config.model.model)])
    if aliases:
        fields["served_model_name"] = list(dict.fromkeys([*aliases, model.name]))
    free = {name: value for name, value in fields.items() if not config.is_given(name)}
    served = config.with_fields(
        free | {"model": str(model.path)}, origin=f"the Modelfile of {model.name}"
    )
    return checked(served)


def _found(config: Config) -> tuple[StoredModel, Modelfile] | None:
    name = config.model.model
    if name is None or config.model.revision is not None or Path(name).exists():
        return None
    load = config.load
    stores = Stores.of(load.model_dir, load.download_dir, load.use_modelscope)
    store = CreatedStore()
    try:
        full = full_name(name, "--model")
        record = store.get(full)
    except RequestError:  # an id that no created model may have
        record = None
    if record is None:
        stored = stores.find(WantedModel(name=name))
        own = None if stored is None or stored.fault else own_modelfile(stored)
        return None if stored is None or own is None else (stored, own)
    model = store.stored(full, record, {one.name: one for one in stores.all_models()})
    if model.fault:
        raise ConfigError(f"{model.fault}.", where=full, fix="`dovetail rm` removes the name.")
    own = store.modelfile(full, model)
    return None if own is None else (model, own)
