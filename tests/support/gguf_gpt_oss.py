"""gpt-oss' experts as converters to GGUF take them apart: a matrix each, gate and up apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray[Any, Any]]
FUSED = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")


def apart(weights: Mapping[str, Any]) -> Weights:
    """Return weights with the experts of [X, in, out] as matrices [out, in] by their numbers, and
    sinks called as weights; others as they are."""
    found: Weights = {}
    for name, values in weights.items():
        holder, _, leaf = name.rpartition(".")
        if leaf == "sinks":
            found[f"{name}.weight"] = values
        elif not holder.endswith(".experts") or leaf not in FUSED:
            found[name] = values
        else:
            word = "bias" if leaf.endswith("bias") else "weight"
            rows = values if word == "bias" else values.swapaxes(1, 2)
            for part, own in _parts(leaf, rows).items():
                for number, one in enumerate(own):
                    found[f"{holder}.{number}.{part}.{word}"] = one
    return found


def _parts(leaf: str, rows: Any) -> Weights:
    if leaf.startswith("down"):
        return {"down_proj": rows}
    return {"gate_proj": rows[:, ::2], "up_proj": rows[:, 1::2]}


def together(weights: Mapping[str, Any]) -> Weights:
    """Return the way back from `apart`."""
    found: Weights = {}
    experts: dict[str, dict[str, list[Any]]] = {}
    for name, values in weights.items():
        words = name.split(".")
        if "experts" in words:
            holder = ".".join(words[:-3])
            own = experts.setdefault(holder, {})
            own.setdefault(f"{words[-2]}.{words[-1]}", []).append(values)
        else:
            found[name.removesuffix(".weight") if "sinks" in name else name] = values
    for holder, own in experts.items():
        for word in ("weight", "bias"):
            pair = [np.stack(own[f"{part}.{word}"]) for part in ("gate_proj", "up_proj")]
            rows = np.stack(pair, axis=2).reshape(len(pair[0]), -1, *pair[0].shape[2:])
            down, tail = np.stack(own[f"down_proj.{word}"]), "_bias" * (word == "bias")
            for leaf, values in (("gate_up_proj", rows), ("down_proj", down)):
                whole = values if word == "bias" else values.swapaxes(1, 2)
                found[f"{holder}.{leaf}{tail}"] = np.ascontiguousarray(whole)
    return found
