"""Optimization of steps: --compilation-config, --enforce-eager and --cuda-graph-sizes combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail import registry
from dovetail.config.config import flags, nearest_fix
from dovetail.config.sections.convert import from_value
from dovetail.config.sections.engine import EngineConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.scheduler import SchedulerConfig
from dovetail.errors import ConfigError

FLAG = "--compilation-config"
SIZES_FLAG = "--cuda-graph-sizes"
DEFAULT_LEVEL, COMPILED_LEVEL = 2, 3
SIZES_KEY, MOST_KEY, MODE_KEY = "cudagraph_capture_sizes", "max_capture_size", "cudagraph_mode"
KEYS = ("level", "mode", "use_cudagraph", SIZES_KEY, MODE_KEY, MOST_KEY)
PASSING: dict[str, tuple[Any, ...]] = {
    "backend": ("", "inductor"),
    "cache_dir": ("",),
    "compile_sizes": ([],),
    "cudagraph_copy_inputs": (False,),
    "cudagraph_mm_encoder": (False, True),
    "cudagraph_num_of_warmups": (0,),
    "custom_ops": ([], ["all"]),
    "debug_dump_path": ("",),
    "full_cuda_graph": (False, True),
    "inductor_compile_config": ({}, {"enable_auto_functionalized_v2": False}),
    "inductor_passes": ({},),
    "local_cache_dir": (),
    "splitting_ops": ([],),
    "use_inductor": (True, False),
    "use_inductor_graph_partition": (False, True),
}
"""Unsupported keys -> values that request nothing, what always happens, or only other kernels."""
PASSES = "pass_config"
"""Which operations vLLM's compiler fuses. No result depends on it."""
WHOLE = ("full", "full_decode_only", "full_and_piecewise", "piecewise")
MODES = {"none": False} | dict.fromkeys(WHOLE, True)
"""Whether steps are captured: always whole, never in pieces."""
COMPILE_MODES = ("none", "stock_torch_compile", "dynamo_trace_once", "vllm_compile")
"""vLLM's names of `mode`; a mode's number is its index."""
FUSED, CAPTURED, COMPILED = "fused", "captured", "compiled"
"""Features that a level enables."""
FIRST_SIZES = (1, 2, 4)
FINE_STEP, FINE_ROWS, COARSE_STEP, MOST_ROWS = 8, 256, 16, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMaking:
    """`graph_sizes` are row counts in ascending order; empty if `is_eager`."""

    is_eager: bool
    uses_fused_ops: bool
    compiles: bool
    graph_sizes: tuple[int, ...]


def step_making(
    model_config: ModelConfig,
    scheduler: SchedulerConfig,
    engine: EngineConfig,
    *,
    recorded_rows: int | None,
    max_rows: int,
) -> StepMaking:
    """Return how steps are optimized; `recorded_rows` as in PlatformDefaults.

    Raises: ConfigError for anything unsupported.
    """
    settings = engine.compilation_config
    for key, value in settings.items():
        _check_key(key, value)
    does = registry.admin.value_of("compilation_level", _level(settings), where=f"{FLAG}.level")
    may_capture = CAPTURED in does and _may_capture(settings) and _captures_whole(settings)
    sizes = _sizes(scheduler, engine, recorded_rows, max_rows)
    is_eager = model_config.enforce_eager or not may_capture
    return StepMaking(
        is_eager=is_eager,
        uses_fused_ops=FUSED in does,
        compiles=COMPILED in does
        and not model_config.enforce_eager
        and settings.get("use_inductor") is not False,
        graph_sizes=() if is_eager else sizes,
    )


def _level(settings: Mapping[str, Any]) -> str:
    """Return the level, or the one that corresponds to vLLM's `mode`. Raises: ConfigError"""
    mode = settings.get("mode")
    if mode is None:
        usual = registry.admin.own("compilation_level", str(DEFAULT_LEVEL))
        return str(settings.get("level", usual))
    where = f"{FLAG}.mode"
    if "level" in settings:
        raise ConfigError("a level is given as well.", where=where, fix="leave one of them out.")
    word = str(mode).lower()
    if word not in (*COMPILE_MODES, *map(str, range(len(COMPILE_MODES)))):
        fix = f"use 0 to {len(COMPILE_MODES) - 1}, or {', '.join(COMPILE_MODES)}."
        raise ConfigError(f"{mode!r} is not a mode.", where=where, fix=fix)
    compiles = word not in (COMPILE_MODES[0], "0")
    level = COMPILED_LEVEL if compiles else DEFAULT_LEVEL
    return registry.admin.own("compilation_level", str(level))


def _check_key(key: str, value: Any) -> None:
    """Raise ConfigError for an unknown key, or one that requests an unsupported feature."""
    where = f"{FLAG}.{key}"
    if key in (*KEYS, PASSES) or (key in PASSING and (value is None or value in PASSING[key])):
        return
    if key not in PASSING:
        fix = nearest_fix(key, (*KEYS, *PASSING), f"keys are {', '.join(KEYS)}.")
        raise ConfigError("there is no such key.", where=where, fix=fix)
    fix = f"leave it out; {' and '.join(KEYS)} are read."
    raise ConfigError("this key is not supported yet.", where=where, fix=fix)


def default_sizes(max_size: int) -> tuple[int, ...]:
    """Return 1, 2, 4, every 8th number up to 256, every 16th up to 512, and `max_size` if it is
    below that. None exceeds `max_size`."""
    fine = range(FINE_STEP, FINE_ROWS + 1, FINE_STEP)
    coarse = range(FINE_ROWS + COARSE_STEP, MOST_ROWS + 1, COARSE_STEP)
    return _up_to((*FIRST_SIZES, *fine, *coarse), min(max_size, MOST_ROWS))


def _up_to(sizes: Sequence[int], max_size: int) -> tuple[int, ...]:
    """Return the sizes below `max_size`, then `max_size`."""
    return (*(size for size in sizes if size < max_size), max_size)


def _sizes(
    scheduler: SchedulerConfig, engine: EngineConfig, recorded_rows: int | None, max_rows: int
) -> tuple[int, ...]:
    """Return the row counts to capture or record. Raises: ConfigError"""
    given = _given_sizes(scheduler, engine)
    limit = engine.compilation_config.get(MOST_KEY)
    max_size = max_rows if limit is None else min(_number(limit, f"{FLAG}.{MOST_KEY}"), max_rows)
    if not given:
        if recorded_rows is None:
            return default_sizes(max_size)
        return tuple(range(1, min(max_size, recorded_rows) + 1))
    if len(given) == 1:
        return _up_to(
            (*FIRST_SIZES, *range(FINE_STEP, given[0], FINE_STEP)), min(given[0], max_size)
        )
    return tuple(sorted({min(size, max_size) for size in given}))


def _given_sizes(scheduler: SchedulerConfig, engine: EngineConfig) -> tuple[int, ...]:
    """Return the sizes that the user gave. Raises: ConfigError if two flags disagree."""
    by_flag = tuple(_number(size, SIZES_FLAG) for size in scheduler.cuda_graph_sizes)
    where = f"{FLAG}.{SIZES_KEY}"
    key = engine.compilation_config.get(SIZES_KEY) or ()
    if not isinstance(key, list | tuple):
        raise ConfigError("is not a list of sizes.", where=where, fix="give a list, as [1, 2, 4].")
    by_key = tuple(_number(size, where) for size in key)
    if by_flag and by_key and by_flag != by_key:
        raise ConfigError(
            f"asks for sizes other than those of {SIZES_FLAG}.", where=where, fix="leave one out."
        )
    return by_flag or by_key


def _number(value: Any, where: str) -> int:
    is_text = isinstance(value, str) and value.isascii() and value.isdecimal()
    number = int(value) if is_text else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(
            f"{value!r} is not a number of requests.", where=where, fix="give whole numbers from 1."
        )
    return number


def _captures_whole(settings: Mapping[str, Any]) -> bool:
    """Return whether the mode captures steps. Raises: ConfigError for an unsupported mode."""
    mode = str(settings.get(MODE_KEY) or "full_decode_only").lower()
    if mode in MODES:
        return MODES[mode]
    what, fix = f"{mode} is not a mode.", f"use one of {', '.join(MODES)}."
    raise ConfigError(what, where=f"{FLAG}.{MODE_KEY}", fix=fix)


def _may_capture(settings: Mapping[str, Any]) -> bool:
    try:
        return bool(from_value(flags()["enforce_eager"], settings.get("use_cudagraph", True)))
    except ConfigError as error:
        raise ConfigError(
            error.what, where=f"{FLAG}.use_cudagraph", fix="give true or false."
        ) from error
