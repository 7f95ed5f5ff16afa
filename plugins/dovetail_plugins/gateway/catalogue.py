"""Catalogue: the models of this machine that a request may name, as `dovetail list` shows them.

Nothing else can be named: no path, and no model of the hub that is not here. A model's settings are
those of the command line, and over them those of its Modelfile if it was created here or by Ollama.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from threading import Lock

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.config.checkpoint.sources.stores import Stores
from dovetail.config.config import Config
from dovetail.config.rules.model.checkpoint import hub_of
from dovetail.config.rules.steps.cache_size import kv_bytes
from dovetail.errors import ConfigError
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.apis.ollama.models import LATEST
from dovetail_plugins.created_models.serving import own_fields
from dovetail_plugins.created_models.store import CREATED, CreatedStore
from dovetail_plugins.gateway.entries import ModelEntry, entry_of
from dovetail_plugins.modelfile.stored import own_modelfile

SCAN_PERIOD_S = 1.0
"""The stores are read at most this often."""
CACHE_TOKENS = 32768
"""The tokens for which a model's KV cache has room, unless the command line sizes it."""
SPARE_TOKENS = 64
"""Room for blocks that are not full."""
KV_DTYPE = "bfloat16"
IDLE_AFTER_S = 300.0
"""After this long without requests a model is unloaded, unless the command line says otherwise."""
HUB_PREFIXES = ("hf.co/", "huggingface.co/")
"""What Ollama's names of models of the hub begin with."""
CACHE_FLAGS = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")


class Catalogue:
    """The models in this machine's stores, created ones first. Used by several threads."""

    def __init__(self, config: Config, created: CreatedStore | None = None) -> None:
        self._config = config
        self.created = CreatedStore() if created is None else created
        self._lock = Lock()
        self._read_s = float("-inf")
        self._models: dict[str, StoredModel] = {}
        self._names: dict[str, str] = {}

    def models(self) -> tuple[StoredModel, ...]:
        """Return the models, in the order of `dovetail list`. Reads the stores if need be."""
        with self._lock:
            if time.monotonic() - self._read_s >= SCAN_PERIOD_S:
                self._read()
            return tuple(self._models.values())

    def find(self, name: str) -> StoredModel | None:
        """Return the model of this name or alias, if there is one."""
        self.models()
        with self._lock:
            return self._models.get(self._names.get(name, ""))

    def entry(self, model: StoredModel) -> ModelEntry:
        """Return what a gateway needs to serve a model. Raises: ConfigError if it cannot be"""
        if model.fault:
            raise ConfigError(f"{model.fault}.", where=model.name)
        aliases = self._aliases_of(model.name)
        names = {"model": str(model.path), "served_model_name": [model.name]}
        config = self._config.with_fields(names | {"load": 0})
        own = self.created.modelfile(model.name, model) or own_modelfile(model)
        if own is not None:
            fields, aliases = own_fields(own, model, aliases)
            config = config.with_fields(fields, origin=f"the Modelfile of {model.name}")
        config = config.with_fields(self._usual_fields(config, model), origin="default")
        return entry_of(config, aliases, model.path)

    @property
    def hub(self) -> Hub:
        """Return the hub that models are fetched from."""
        return hub_of(self._config.model, self._config.load)

    @property
    def stores(self) -> Stores:
        """Return the stores of other models."""
        load = self._config.load
        return Stores.of(load.model_dir, load.download_dir, load.use_modelscope)

    def forget(self) -> None:
        """Read the stores again when they are next needed."""
        with self._lock:
            self._read_s = float("-inf")

    def _aliases_of(self, model_name: str) -> list[str]:
        with self._lock:
            named = [alias for alias, name in self._names.items() if name == model_name]
        return [alias for alias in named if alias != model_name]

    def _read(self) -> None:
        others = {model.name: model for model in self.stores.all_models()}
        created = {model.name: model for model in self.created.models(others)}
        self._models = created | {n: one for n, one in others.items() if n not in created}
        self._names = dict(_names_of(self._models))
        self._read_s = time.monotonic()

    def _usual_fields(self, config: Config, model: StoredModel) -> dict[str, object]:
        """Return settings of models that share a machine: a small KV cache, and an end."""
        fields: dict[str, object] = {}
        if not config.is_given("idle_after_s"):
            fields["idle_after_s"] = IDLE_AFTER_S
        if not any(map(config.is_given, CACHE_FLAGS)):
            facts = load_model_facts(model.path)
            tokens = min(facts.max_position_tokens, CACHE_TOKENS) + SPARE_TOKENS
            fields["kv_cache_memory_bytes"] = kv_bytes(facts, KV_DTYPE, tokens, 1)
        return fields


def _names_of(models: dict[str, StoredModel]) -> Iterator[tuple[str, str]]:
    """Yield (alias or name, name); no alias is another model's name, or two models' alias."""
    aliases = Counter(alias for name in models for alias in _aliases(name))
    for name in models:
        yield name, name
        for alias in _aliases(name):
            if aliases[alias] == 1 and alias not in models:
                yield alias, name
    for name, model in models.items():
        if model.store == CREATED and (bare := name.removesuffix(LATEST)) not in models:
            yield bare, name  # whatever else it might be short for


def _aliases(name: str) -> set[str]:
    """Return other spellings: Ollama's, and the name without its owner."""
    bare = name.removesuffix(LATEST)
    found = {bare, bare + LATEST, bare.rpartition("/")[2]}
    if "/" in bare:
        found |= {prefix + bare for prefix in HUB_PREFIXES}
    return found - {name}
