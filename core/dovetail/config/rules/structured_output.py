"""--structured-outputs-config resolved: which backends there are, and the bounds of compiling."""

from __future__ import annotations

from typing import Any

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.rules.selections import select
from dovetail.errors import ConfigError, PluginError
from dovetail.interfaces.spec import ModelSpec, Selection, StructuredOutputSpec
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
    config: Config, model: ModelSpec, tokenizer: Selection, tokenizer_path: str
) -> StructuredOutputSpec | None:
    """Return how answers are constrained, or None where no backend is installed.

    Raises: ConfigError for an unknown key, PluginError for a backend named in vain.
    """
    settings = {
        k.replace("-", "_"): v for k, v in config.structured.structured_outputs_config.items()
    }
    for key in settings:
        if key not in KEYS:
            known = ", ".join(KEYS)
            raise ConfigError("there is no such key.", where=f"{FLAG}.{key}", fix=f"use {known}.")
    said = {key: convert(value, KEYS[key], f"{FLAG}.{key}") for key, value in settings.items()}
    backends = _backends(config, said)
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
        backend=said.get("backend", "auto"),
        falls_back=not said.get("disable_fallback", False),
        closes_objects=bool(said.get("disable_additional_properties", False)),
        **fields,
    )


def _backends(config: Config, said: dict[str, Any]) -> tuple[Selection, ...]:
    """Return the backends that requests may use: those named, else all that work here."""
    options = config.plugin.options_of(KIND)
    named = said.get("backend", "auto")
    allowed = [name.strip() for name in said.get("backends", "").split(",") if name.strip()]
    if named != "auto":
        registry.load(KIND, named, where=f"{FLAG}.backend")
        allowed = [*allowed, named] if allowed else []
    if allowed:
        where = f"{FLAG}.backends"
        return tuple(select(KIND, n, where=where, options=options) for n in dict.fromkeys(allowed))
    selections = []
    for name in registry.names(KIND):
        try:
            registry.load(KIND, name)
        except PluginError:
            continue  # its package is not installed; `dovetail plugins list` says so
        selections.append(select(KIND, name, options=options))
    return tuple(selections)
