"""The facts about a model in `dovetail list`: architecture, quantization, whether it fits memory.

They are estimated from the file sizes and the model's shape; `inspect` computes them from the
tensors. Imports no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules.machine.device import select_platform
from dovetail.config.rules.selections import stored_quantization
from dovetail.config.sections.device import DeviceConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import DovetailError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.inspect import capacity
from dovetail_plugins.packed_weights.bounds import DiskRun

KV_DTYPE = "bfloat16"
CONTEXT_TOKENS = 2048
"""The length of the one request that must fit next to the weights."""
SHARE_WITHOUT_FACTS = 1.1
"""Memory per byte of a file if its shape is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model and its facts. `fits` None: the device's free memory is unknown. `from_disk`: how one
    that does not fit would run, if it would."""

    model: StoredModel
    architecture: str
    quantization: str
    needed_bytes: int
    fits: bool | None
    from_disk: DiskRun | None
    fault: str

    def as_json(self) -> dict[str, Any]:
        """Return the facts with the keys of --json."""
        return {
            "name": self.model.name,
            "store": self.model.store,
            "path": str(self.model.path),
            "bytes": self.model.num_bytes,
            "architecture": self.architecture,
            "quantization": self.quantization,
            "needed_bytes": self.needed_bytes,
            "fits": self.fits,
            "from_disk": asdict(self.from_disk) if self.from_disk else None,
            "fault": self.fault or None,
        }


def device_memory() -> tuple[str, int | None]:
    """Return (the device that serve would use, its free memory in bytes or None if unknown)."""
    platform = select_platform(DeviceConfig(), PluginConfig())[1]
    return platform.device_type, platform.free_bytes()


def listed(model: StoredModel, free_bytes: int | None) -> ListedModel:
    """Return the facts of a model. What Ollama reports about its own models is used unchanged."""
    facts, fault = None, model.fault
    if not fault and not model.family:
        facts, fault = _facts(model)
    needed = _needed_bytes(model, facts)
    fits = None if free_bytes is None else needed <= free_bytes
    return ListedModel(
        model=model,
        architecture=facts.architecture if facts else model.family,
        quantization=_quantization(model, facts),
        needed_bytes=needed,
        fits=fits,
        from_disk=_from_disk(model) if facts and fits is False else None,
        fault=fault,
    )


def _facts(model: StoredModel) -> tuple[ModelSpec | None, str]:
    """Return (the model's facts or None, the reason if there are none)."""
    try:
        return load_model_facts(model.path), ""
    except DovetailError as error:
        return None, str(error)


def _from_disk(model: StoredModel) -> DiskRun | None:
    """Return how a model that does not fit would run; None if it would not."""
    from dovetail_plugins.inspect.collect import memory_taken

    config = Config.from_fields({"model": str(model.path)})
    try:
        memory = memory_taken(config, resolve(config))
    except DovetailError:
        return None
    return memory.from_disk if memory else None


def _needed_bytes(model: StoredModel, facts: ModelSpec | None) -> int:
    if facts is None:
        return round(model.num_bytes * SHARE_WITHOUT_FACTS)
    tokens = min(CONTEXT_TOKENS, facts.max_position_tokens)
    return model.num_bytes + tokens * capacity.per_token(facts, KV_DTYPE)


def _quantization(model: StoredModel, facts: ModelSpec | None) -> str:
    if model.label or facts is None:
        return model.label
    try:
        stored = stored_quantization(facts)
    except DovetailError:
        return "unknown"
    dtype = facts.hf_config.get("dtype") or facts.hf_config.get("torch_dtype") or ""
    return stored or str(dtype)
