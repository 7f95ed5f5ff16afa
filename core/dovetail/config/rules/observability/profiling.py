"""--profiler-config: what torch's profiler records, and the folder of its traces.

The keys are vLLM's. Every key is applied or refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dovetail import registry
from dovetail.config.rules.json_keys import read_keys
from dovetail.config.sections.observability import ObservabilityConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.profile import FLAG, ProfileSpec
from dovetail.interfaces.data.spec import Selection

TORCH = "torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerKeys:
    """The keys of --profiler-config. The last four have one supported value (see ONE_VALUE)."""

    profiler: str | None = None
    torch_profiler_dir: str | None = None
    torch_profiler_record_shapes: bool = False
    torch_profiler_with_memory: bool = False
    torch_profiler_with_stack: bool = False
    torch_profiler_with_flops: bool = False
    torch_profiler_use_gzip: bool = False
    torch_profiler_dump_cuda_time_total: bool = False
    ignore_frontend: bool = True
    delay_iterations: int = 0
    max_iterations: int = 0


ONE_VALUE = {
    "torch_profiler_dump_cuda_time_total": (False, "read the table off the trace"),
    "ignore_frontend": (True, "ranks alone are profiled, and no HTTP server"),
    "delay_iterations": (0, "send POST /start_profile when the steps come that are of interest"),
    "max_iterations": (0, "send POST /stop_profile when there are enough steps"),
}
"""Keys that are refused except with this value -> what to do instead."""


def profile_spec(observability: ObservabilityConfig, executor: Selection) -> ProfileSpec | None:
    """Return how ranks are profiled, None if they are not. Raises: ConfigError"""
    raw = observability.profiler_config
    keys = read_keys(ProfilerKeys, raw, FLAG)
    if not raw or (keys.profiler is None and keys.torch_profiler_dir is None):
        return None
    _check(keys)
    if "collective_rpc" not in registry.admin.load_selection(executor).capabilities:
        raise ConfigError(
            f"the executor {executor.name} does not reach all ranks with a call.",
            where=FLAG,
            fix="leave the flag out, or choose another --distributed-executor-backend.",
        )
    return ProfileSpec(
        folder_path=str(Path(str(keys.torch_profiler_dir)).expanduser().absolute()),
        with_shapes=keys.torch_profiler_record_shapes,
        with_memory=keys.torch_profiler_with_memory,
        with_stacks=keys.torch_profiler_with_stack,
        with_flops=keys.torch_profiler_with_flops,
        is_compressed=keys.torch_profiler_use_gzip,
    )


def _check(keys: ProfilerKeys) -> None:
    """Raise ConfigError for keys that request unsupported features."""
    if keys.profiler not in (None, TORCH):
        raise ConfigError(
            f'there is no profiler "{keys.profiler}".',
            where=f"{FLAG}.profiler",
            fix=f"use {TORCH}; CUDA's own are started around the whole server: nsys profile "
            "dovetail serve.",
        )
    if not keys.torch_profiler_dir:
        raise ConfigError(
            "there is no folder for the traces.",
            where=f"{FLAG}.torch_profiler_dir",
            fix="name one; ranks make it if it is not there.",
        )
    for name, (value, fix) in ONE_VALUE.items():
        if getattr(keys, name) != value:
            raise ConfigError(
                f"{getattr(keys, name)} is not supported.", where=f"{FLAG}.{name}", fix=f"{fix}."
            )
