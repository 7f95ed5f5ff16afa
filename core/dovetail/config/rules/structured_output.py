"""--structured-outputs-config: the backends to use, and the limits of compiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail import registry
from dovetail.config.rules.selections import select
from dovetail.config.sections.plugin import PluginConfig
from dovetail.config.sections.structured_outputs import StructuredOutputsConfig
from dovetail.errors import ConfigError, PluginError
from dovetail.interfaces.data.spec import ModelSpec, Selection, StructuredOutputSpec
from dovetail.registry.options import convert

FLAG = "--structured-outputs-config"
KIND = "structured_output_backend"
KEYS: dict[str, type[Any]] = {
    "backend": str,
    "backends": str,
    "disable_fallback": bool,
    "disable_any_whitespace": bool,
    "disable_additional_properties": bool,
    "compile_limit_s": float,
    "cache_bytes": int,
}


def structured_output_spec(
    structured: StructuredOutputsConfig,
    plugins: PluginConfig,
    model: ModelSpec,
    tokenizer: Selection,
    tokenizer_path: str,
) -> StructuredOutputSpec | None:
    """Return how answers are constrained, or None if no backend is installed.

    Raises: ConfigError for an unknown key, PluginError for a backend that is not available.
    """
    settings = {k.replace("-", "_"): v for k, v in structured.structured_outputs_config.items()}
    for key in settings:
        if key not in KEYS:
            known = ", ".join(KEYS)
            raise ConfigError("there is no such key.", where=f"{FLAG}.{key}", fix=f"use {known}.")
    said = {key: convert(value, KEYS[key], f"{FLAG}.{key}") for key, value in settings.items()}
    options = plugins.options_of(KIND)
    named = said.get("backend", "auto")
    chosen = None
    if named != "auto":
        chosen = select(KIND, named, where=f"{FLAG}.backend", options=options)
    backends = _backends(said.get("backends", ""), chosen, options)
    if not backends:
        return None
    fields: dict[str, Any] = {k: said[k] for k in ("compile_limit_s", "cache_bytes") if k in said}
    if said.get("disable_any_whitespace"):
        fields["whitespace"] = ""
    return StructuredOutputSpec(
        tokenizer=tokenizer,
        tokenizer_path=tokenizer_path,
        eos_ids=tuple(model.eos_token_ids),
        vocab_size=model.vocab_size,
        backends=backends,
        backend="auto" if chosen is None else chosen.name,
        falls_back=not said.get("disable_fallback", False),
        closes_objects=bool(said.get("disable_additional_properties", False)),
        **fields,
    )


def _backends(
    words: str, chosen: Selection | None, options: Mapping[str, Any]
) -> tuple[Selection, ...]:
    """Return the backends that requests may use: the named ones, else all that work here, and the
    one that is chosen for all."""
    allowed = [name.strip() for name in words.split(",") if name.strip()]
    where = f"{FLAG}.backends"
    found = [select(KIND, name, where=where, options=options) for name in dict.fromkeys(allowed)]
    found = found if allowed else list(_working(options))
    if chosen is not None and chosen not in found:
        found.append(chosen)
    return tuple(found)


def _working(options: Mapping[str, Any]) -> Iterator[Selection]:
    """Yield the registered backends that work on this machine."""
    for name in registry.names(KIND):
        try:
            registry.load(KIND, name)
        except PluginError:
            continue  # its package is not installed, as `dovetail plugins list` says
        yield select(KIND, name, options=options)
