"""Scales of an fp8 KV cache: their source, and those read from a file.

The file is JSON: {"model_type": ..., "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0":
{"0": 0.02, ...}}}}, one scale for each tensor-parallel rank and layer, used for both keys and
values.

Source: the layout that --quantization-param-path has had since float8 caches were introduced,
written by calibration tools for models that are not quantized otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.config import Config
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import SCALED_KV_DTYPES
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.json_values import InvalidJson, json_value

FILE_FLAG, MEASURE_FLAG = "--quantization-param-path", "--calculate-kv-scales"
FILE_DTYPE = "float8_e4m3fn"
MAX_FILE_BYTES = 16 << 20
STEPS = {"K_SCALE_CONSTANT": 200.0, "V_SCALE_CONSTANT": 100.0}
"""Variable -> its default: the number that the largest measured key or value becomes in the cache.
An fp8 number can be up to 448 or 57344, so larger ones still fit. Values get more room, because
they vary more from text to text."""


def kv_scales(config: Config, model: ModelSpec, kv_dtype: str) -> tuple[tuple[float, ...], ...]:
    """Return scales by rank and layer from the file that was given; empty without one.

    Raises: ConfigError for flags that do not apply to this type of cache, and a faulty file.
    """
    path = config.cache.quantization_param_path
    if kv_dtype in SCALED_KV_DTYPES and not path and not config.cache.calculate_kv_scales:
        _check_scheme(model)
    flag = FILE_FLAG if path else MEASURE_FLAG if config.cache.calculate_kv_scales else None
    if flag is None:
        return ()
    if kv_dtype not in SCALED_KV_DTYPES:
        raise ConfigError(
            f"a KV cache of {kv_dtype} does not use scales.",
            where=flag,
            fix="add --kv-cache-dtype fp8, or leave the flag out.",
        )
    if not path:
        return ()
    if config.cache.calculate_kv_scales:
        raise ConfigError(
            f"{MEASURE_FLAG} would replace the scales of the file.",
            where=FILE_FLAG,
            fix="leave one of the two out.",
        )
    return _scales_of(Path(path), model, kv_dtype, config.parallel.tensor_parallel_size)


def kv_steps(environ: Mapping[str, str]) -> tuple[float, float]:
    """Return the numbers as which the largest measured key and value are stored. Raises:
    ConfigError"""
    keys, values = (_steps(name, environ.get(name)) for name in STEPS)
    return keys, values


def _steps(name: str, text: str | None) -> float:
    try:
        found = float(text) if text else STEPS[name]
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found > 0):
        raise ConfigError(f"{text!r} is not a number above 0.", where=name, fix=f"unset {name}.")
    return found


def _check_scheme(model: ModelSpec) -> None:
    """Raises: ConfigError if the checkpoint's scales are for another number format."""
    stored = model.hf_config.get("quantization_config")
    scheme = stored.get("kv_cache_scheme") if isinstance(stored, Mapping) else None
    if not isinstance(scheme, Mapping):
        return
    kind, bits = scheme.get("type", "float"), scheme.get("num_bits", 8)
    if (kind, bits) != ("float", 8) or scheme.get("symmetric") is False:
        shifted = " with zero points" if scheme.get("symmetric") is False else ""
        raise ConfigError(
            f"the checkpoint's scales of the KV cache are for {kind} of {bits} bits{shifted}.",
            where="config.json: quantization_config.kv_cache_scheme",
            fix=f"add {MEASURE_FLAG}, or use --kv-cache-dtype auto.",
        )


def _scales_of(
    path: Path, model: ModelSpec, kv_dtype: str, num_ranks: int
) -> tuple[tuple[float, ...], ...]:
    content = _read(path)
    stated, model_type = content.get("model_type"), model.hf_config.get("model_type")
    if stated is not None and model_type is not None and stated != model_type:
        raise _fault(path, f"the scales are those of a {stated} model, this one is {model_type}")
    cache = _mapping(path, content, "kv_cache")
    if cache.get("dtype") != FILE_DTYPE:
        raise _fault(path, f"kv_cache.dtype is {cache.get('dtype')!r}, not {FILE_DTYPE!r}")
    if kv_dtype != FILE_DTYPE:
        raise _fault(path, f"the scales are for {FILE_DTYPE}, the cache holds {kv_dtype}")
    ranks = _mapping(path, cache, "scaling_factor")
    if set(ranks) != set(map(str, range(num_ranks))):
        raise _fault(path, f"scaling_factor has ranks {', '.join(ranks)}, there are {num_ranks}")
    return tuple(_layers(path, ranks, str(rank), model.num_layers) for rank in range(num_ranks))


def _layers(path: Path, ranks: Mapping[str, Any], rank: str, num_layers: int) -> tuple[float, ...]:
    layers = _mapping(path, ranks, rank)
    if set(layers) != set(map(str, range(num_layers))):
        raise _fault(path, f"rank {rank} has {len(layers)} layers, the model 0 to {num_layers - 1}")
    return tuple(_scale(path, rank, layer, layers[str(layer)]) for layer in range(num_layers))


def _scale(path: Path, rank: str, layer: int, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value > 0):
        raise _fault(
            path, f"rank {rank}, layer {layer}: {value!r}, where a scale is a number above 0"
        )
    return float(value)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _fault(
                path, f"larger than {MAX_FILE_BYTES >> 20} MiB, too large for a list of scales"
            )
        content = json_value(path.read_text(encoding="utf-8"))
    except InvalidJson as error:
        raise _fault(path, str(error).rstrip(".")) from error
    except (OSError, UnicodeError) as error:
        raise _fault(path, f"cannot be read: {error}") from error
    return _mapping(path, {"the file": content}, "the file")


def _mapping(path: Path, outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = outer.get(key)
    if not isinstance(value, dict):
        raise _fault(path, f"{key} is not an object")
    return value


def _fault(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{path}: {what}.",
        where=FILE_FLAG,
        fix='write {"model_type": ..., "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": '
        '{"RANK": {"LAYER": SCALE}}}}.',
    )
