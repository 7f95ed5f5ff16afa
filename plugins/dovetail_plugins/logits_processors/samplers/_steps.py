"""The sampler's own steps as samplers, for requests with another order, and all steps by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from dovetail import registry
from dovetail.errors import PluginError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import PIPELINE
from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._sampler import (
    NO_TRUNCATION,
    ORDERED,
    Rows,
    Sampler,
    Values,
)
from dovetail_plugins.logits_processors.samplers.repeat_last_n import (
    MOVED,
    NEUTRAL,
    RepeatLastN,
    moved,
)

if TYPE_CHECKING:
    import torch

KIND = "logits_processor"


class Temperature(Sampler):
    """Divides the logits by the temperature."""

    info = Info(summary="divides the logits by the temperature")

    @classmethod
    def values_of(cls, params: SamplingParams) -> Values:
        """Return the temperature."""
        return {"temperature": params.temperature}

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether it changes the logits, or leaves only the best."""
        return values["temperature"] != 1.0

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the logits below the best, divided. Shapes: [S, V] -> [S, V]"""
        temperatures = batch.column("temperature").clamp(min=1e-6)
        return (logits - logits.amax(dim=1, keepdim=True)).div_(temperatures.float())


class _Filter(Sampler):
    """One of the sampler's own filters: the values of the others are neutral."""

    field = ""

    @classmethod
    def values_of(cls, params: SamplingParams) -> Values:
        """Return the filter's setting."""
        return {**NO_TRUNCATION, cls.field: getattr(params, cls.field)}

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether tokens may go."""
        value = values[cls.field]
        return value > 0 if cls.field == "top_k" else value != NO_TRUNCATION[cls.field]

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the filtered logits. Shapes: [S, V] -> [S, V]"""
        import numpy as np
        import torch

        from dovetail_kernels.sample.filters import filter_top
        from dovetail_plugins.logits_processors.samplers._mass import ranked

        top_k, top_p, min_p = (
            np.array([one.values[name] for one in batch.rows]) for name in NO_TRUNCATION
        )
        keeps_some = max(batch.min_keep, default=1) > 1
        if keeps_some:
            floor = ranked(logits, batch.min_keep)
            topmost = torch.where(logits >= floor, logits, -torch.inf)
        with np.errstate(divide="ignore"):
            lowest = np.log(min_p).astype(np.float32)
        filter_top(logits, top_k.astype(np.int64), top_p.astype(np.float64), lowest)
        return torch.maximum(logits, topmost) if keeps_some else logits


class TopK(_Filter):
    """The sampler's top-k."""

    info = Info(summary="the sampler's top-k")
    field = "top_k"


class TopP(_Filter):
    """The sampler's top-p."""

    info = Info(summary="the sampler's top-p")
    field = "top_p"


class MinP(_Filter):
    """The sampler's min-p."""

    info = Info(summary="the sampler's min-p")
    field = "min_p"


OWN: Mapping[str, type[Sampler]] = {
    "penalties": RepeatLastN,
    "temperature": Temperature,
    "min_p": MinP,
    "top_k": TopK,
    "top_p": TopP,
}


@cache
def steps() -> Mapping[str, type[Sampler]]:
    """Return all samplers that an order can name, in the order of the pipeline."""
    found = {**{name: one for name, one in _installed() if one is not RepeatLastN}, **OWN}
    places = {
        name: (PIPELINE.index(name if name in PIPELINE else one.stage), one.rank, name)
        for name, one in found.items()
    }
    places["penalties"] = (PIPELINE.index(RepeatLastN.stage), RepeatLastN.rank, "")
    return {name: found[name] for name in sorted(found, key=places.__getitem__)}


def _installed() -> list[tuple[str, type[Sampler]]]:
    found = []
    for entry in registry.entries(KIND):
        try:
            loaded: Any = registry.load(KIND, entry.id)
        except PluginError:
            continue  # it is left out of the engine too, with a warning
        if issubclass(loaded, Sampler):
            found.append((entry.name, loaded))
    return found


def without(params: SamplingParams, names: set[str]) -> dict[str, Any]:
    """Return the fields of params that turn these steps off."""
    off: dict[str, Any] = {name: NO_TRUNCATION[name] for name in names & NO_TRUNCATION.keys()}
    if "penalties" in names:
        off |= NEUTRAL
    if "temperature" in names and params.temperature > 0.0:
        off["temperature"] = 1.0
    others = [one for name, one in steps().items() if name in names and name not in OWN]
    fields = {field for one in others for field in one.claims}
    fields |= {MOVED} if "penalties" in names else set()
    off["extra_args"] = {n: v for n, v in params.extra_args.items() if n not in fields}
    return off


def taken_apart(params: SamplingParams) -> dict[str, Any]:
    """Return fields that turn the sampler's own steps off, except the draw."""
    apart = moved(params)
    own = {name: getattr(params, name) for name in ("temperature", *NO_TRUNCATION)}
    temperature = 1.0 if params.temperature > 0.0 else 0.0
    return {
        **{name: getattr(apart, name) for name in apart.__struct_fields__ if "penalty" in name},
        **NO_TRUNCATION,
        "temperature": temperature,
        "extra_args": {**apart.extra_args, ORDERED: {"own": own}},
    }
