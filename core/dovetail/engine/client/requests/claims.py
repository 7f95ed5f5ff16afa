"""Request fields that logits processors and stop conditions claim, and their values in a body.

A claimed field is sent in the body itself or in `vllm_xargs`, and reaches the plugins as
SamplingParams.extra_args.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.logits import ANY_FIELD

XARGS = "vllm_xargs"


def claimed_fields(spec: EngineSpec) -> frozenset[str]:
    """Return the names that the engine's logits processors and stop conditions claim."""
    chosen = (*spec.run.logits_processors, *spec.stop_conditions)
    loaded = (registry.admin.load_selection(selection) for selection in chosen)
    return frozenset(name for plugin in loaded for name in plugin.claims)


def extra_args(undeclared: Mapping[str, Any], claimed: frozenset[str]) -> dict[str, Any]:
    """Return the claimed fields of a body; `undeclared` are its fields with no other meaning.

    Raises: RequestError for an unclaimed field in `vllm_xargs`, and for a field set twice.
    """
    found = {n: v for n, v in undeclared.items() if n in claimed and v is not None}
    inner = undeclared.get(XARGS) or {}
    if not isinstance(inner, Mapping):
        raise RequestError("must be an object.", where=XARGS)
    for name, value in inner.items():
        where = f"{XARGS}.{name[:64]}"
        if name not in claimed and ANY_FIELD not in claimed:
            raise _unclaimed(where, claimed)
        if name in found and found[name] != value:
            raise RequestError(f"{name} is set as well, to another value.", where=where)
        found[name] = value
    return found


def _unclaimed(where: str, claimed: frozenset[str]) -> RequestError:
    known = ", ".join(sorted(claimed))
    return RequestError(
        "no logits processor of this server claims this field.",
        where=where,
        fix=f"use {known}." if known else "start the server with --logits-processors naming one.",
        code="unsupported_field",
    )
