"""What `dovetail tune` tries: for each setting, values other than the engine's own choice.

A setting that the user gave is not tried. The order is that of the gains to expect, since time may
run out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.config import Config
from dovetail.config.rules.machine.platform import usable_cores
from dovetail.interfaces.data.spec import EngineSpec
from dovetail_plugins.tune.settings import TuneFlags

DRAFT_TOKENS = 4
STEP_TOKENS = (128, 512, 2048)
Fields = Mapping[str, Any]
"""Names of settings (flags with underscores) -> values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One setting and the values to try."""

    name: str
    values: tuple[Any, ...]

    def candidates(self) -> list[Fields]:
        """Return each value as the setting of a config."""
        return [{self.name: value} for value in self.values]


def axes_of(config: Config, spec: EngineSpec, flags: TuneFlags) -> list[Axis]:
    """Return what to try for a goal, most promising first. `spec` is the engine as it would start
    without tuning."""
    kinds = {
        "latency": (_quantization, _threads, _drafter, _kv_cache_dtype),
        "throughput": (_quantization, _threads, _step_tokens, _rows, _kv_cache_dtype),
        "memory": (_quantization, _kv_cache_dtype),
    }
    found = [one(spec, flags) for one in kinds[flags.goal]]
    return [axis for axis in found if axis.values and not config.is_given(axis.name)]


def _quantization(spec: EngineSpec, flags: TuneFlags) -> Axis:
    is_whole = spec.run.quantization.name == "none"
    return Axis(name="quantization", values=flags.try_quantization if is_whole else ())


def _threads(spec: EngineSpec, flags: TuneFlags) -> Axis:
    """Half of the cores, which is best where two threads already take all the bandwidth."""
    cores = usable_cores() if spec.run.device == "cpu" else 1
    ranks = spec.run.rank.world_size * spec.num_engines
    return Axis(name="num_threads", values=(cores // 2,) if cores >= 2 and ranks == 1 else ())


def _drafter(spec: EngineSpec, flags: TuneFlags) -> Axis:
    values = [
        {"method": name, "num_speculative_tokens": DRAFT_TOKENS} for name in flags.try_drafter
    ]
    return Axis(name="speculative_config", values=tuple(values))


def _kv_cache_dtype(spec: EngineSpec, flags: TuneFlags) -> Axis:
    values = tuple(name for name in flags.try_kv_cache_dtype if name != spec.run.kv_dtype)
    return Axis(name="kv_cache_dtype", values=values)


def _step_tokens(spec: EngineSpec, flags: TuneFlags) -> Axis:
    least = max(flags.requests, spec.run.max_rows)
    others = (n for n in STEP_TOKENS if n != spec.run.max_step_tokens and n >= least)
    return Axis(name="max_num_batched_tokens", values=tuple(others))


def _rows(spec: EngineSpec, flags: TuneFlags) -> Axis:
    half = min(flags.requests, spec.run.max_rows) // 2
    return Axis(name="max_num_seqs", values=(half,) if half else ())
