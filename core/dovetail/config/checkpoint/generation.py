"""Default sampling settings: generation_config.json, overridden by the user's settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams

log = logging.getLogger(__name__)

FILE = "generation_config.json"
FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
"""Sampling fields that may have defaults."""
MORE_FIELDS = ("presence_penalty", "frequency_penalty", "seed", "stop")
"""Further ones, which only --override-generation-config sets."""

_WHERE = "generation config"
_FIX = "mend generation_config.json or --override-generation-config."


def default_sampling(
    source: str | None, model_path: str, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the sampling defaults: of the "model", of another folder, or none (None).

    Raises: ConfigError for a folder without the file and for a value out of range.
    """
    stored: dict[str, Any] = {}
    place = str(Path(model_path if source == "model" else source or "") / FILE)
    if source == "model":
        stored = read_json(Path(model_path) / FILE, is_required=False)
    elif source is not None:
        stored = _of_folder(source)
    sampling, laid = _sampling(stored, is_strict=False), _sampling(overrides, is_strict=True)
    _tell(sampling, laid, None if source is None else place)
    return sampling | laid


def _of_folder(source: str) -> dict[str, Any]:
    path = Path(source).expanduser() / FILE
    if not path.is_file():
        raise ConfigError(
            f"there is no {path}.",
            where="--generation-config",
            fix="name a folder that has the file, or auto (the model's own), or dovetail (none).",
        )
    return read_json(path)


def _tell(found: Mapping[str, Any], laid: Mapping[str, Any], place: str | None) -> None:
    """Log the defaults for requests, and their origin."""
    parts = [
        ", ".join(f"{name} {value}" for name, value in values.items()) + f" ({origin})"
        for values, origin in ((found, place), (laid, "--override-generation-config"))
        if values
    ]
    nothing = "as asked" if place is None else f"none in {place}"
    log.info("default sampling settings: %s.", "; ".join(parts) or f"dovetail's own ({nothing})")


def _sampling(values: Mapping[str, Any], *, is_strict: bool) -> dict[str, Any]:
    """Return the sampling fields of generation settings, named as in SamplingParams."""
    given = dict(values)
    if "max_new_tokens" in given:
        given.setdefault("max_tokens", given.pop("max_new_tokens"))
    given = {name: value for name, value in given.items() if value is not None}
    extra = _claimed(given) if is_strict else {}
    unknown = sorted(set(given) - {*FIELDS, *MORE_FIELDS, *extra}) if is_strict else []
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} cannot have a default.",
            where="--override-generation-config",
            fix=f"use some of {', '.join((*FIELDS, *MORE_FIELDS))}, or fields of samplers.",
        )
    sampling = {n: given[n] for n in (*FIELDS, *MORE_FIELDS * is_strict) if n in given}
    if "stop" in sampling:
        stops = sampling["stop"]
        sampling["stop"] = (stops,) if isinstance(stops, str) else tuple(map(str, stops))
    _check(sampling)
    return {**sampling, "extra_args": extra} if extra else sampling


def _claimed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that logits processors claim. Raises: ConfigError for a wrong value"""
    others = {n: v for n, v in given.items() if n not in (*FIELDS, *MORE_FIELDS)}
    found: dict[str, Any] = {}
    for entry in registry.entries("logits_processor") if others else ():
        processor = registry.load("logits_processor", entry.id)
        found |= {n: v for n, v in others.items() if n in processor.claims}
        try:
            if processor.wants(params := SamplingParams(extra_args=found)):
                processor.verify(params, 1)
        except RequestError as error:
            raise ConfigError(f"{error.where} {error.what}", where=_WHERE, fix=_FIX) from error
    return found


def _check(sampling: Mapping[str, Any]) -> None:
    for name, value in sampling.items():
        if name != "stop" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{name} must be a number, not {value!r}.", where=_WHERE, fix=_FIX)
    try:
        SamplingParams(**sampling).verify()
    except RequestError as error:
        raise ConfigError(f"{error.where} {error.what}", where=_WHERE, fix=_FIX) from error
