"""Layers in memory: the parameters and bytes of every group.

It mirrors what `dovetail.layers` does with full-precision tensors; the quantization method
describes quantized ones.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dovetail.config.checkpoint.dtypes import BYTES
from dovetail.config.checkpoint.experts import experts_of
from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail_plugins.inspect.activations import NOT_TOLD, of_layer
from dovetail_plugins.inspect.facts import Group
from dovetail_plugins.inspect.how import How
from dovetail_plugins.inspect.stored_layers import (
    EMBEDDING,
    EXPERTS,
    HEAD,
    ORDER,
    UNUSED,
    purpose_of,
    values_by_name,
)

log = logging.getLogger(__name__)

FLOATS = ("float32", "bfloat16", "float16", "float64")
HEAD_NAME = "lm_head"
_FUSED_AS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), "gate_up_proj"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """One layer: the formats of its matrix on disk and in memory, and the bytes of all its tensors.
    A packed matrix has `outputs` of `row_bytes` each, and `shared_bytes` (see StorageEstimate).
    `activations` describes its product, "" without one."""

    layer: StoredLayer
    purpose: str
    stored: str
    kept: str
    parameters: int
    num_bytes: int
    is_exact: bool
    outputs: int = 0
    row_bytes: int = 0
    shared_bytes: int = 0
    activations: str = ""


def groups_of(layers: Iterable[StoredLayer], how: How) -> tuple[Group, ...]:
    """Return the layers by group, in the order of a forward pass."""
    by_purpose: dict[str, list[_Weighed]] = {}
    fused: dict[tuple[str, str], list[_Weighed]] = {}
    for layer in layers:
        one = _weighed(layer, how)
        fused.setdefault((_fused_name(layer.name, how), one.kept), []).append(one)
    for parts in fused.values():
        for one in _as_one(parts, how.panel_outputs):
            by_purpose.setdefault(one.purpose, []).append(one)
    experts, picked = experts_of(how.model.hf_config)
    share = (picked, experts) if experts else (1, 1)
    return tuple(
        _group(name, by_purpose[name], share if name == EXPERTS else (1, 1))
        for name in ORDER
        if name in by_purpose
    )


def _group(name: str, weighed: list[_Weighed], active: tuple[int, int]) -> Group:
    parameters = sum(one.parameters for one in weighed)
    stored: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    activations: Counter[str] = Counter()
    for one in weighed:
        stored[one.stored] += one.parameters
        formats[one.kept] += one.parameters
        if one.activations:
            activations[one.activations] += one.parameters
    return Group(
        name=name,
        layers=len(weighed),
        parameters=parameters,
        active_parameters=parameters * active[0] // active[1],
        stored=dict(stored.most_common()),
        stored_bytes=sum(one.layer.num_bytes for one in weighed),
        kept=dict(formats.most_common()),
        kept_bytes=sum(one.num_bytes for one in weighed),
        is_exact=all(one.is_exact for one in weighed),
        activations=dict(activations.most_common()),
    )


def _weighed(layer: StoredLayer, how: How) -> _Weighed:
    """Return a layer with its memory."""
    purpose = purpose_of(layer)
    plain = all(header.dtype in FLOATS for header in layer.tensors.values())
    stored = _stored_as(layer)
    if purpose == UNUSED or (purpose == HEAD and how.is_tied):
        count = sum(header.num_values for header in layer.tensors.values())
        return _Weighed(layer=layer, purpose=UNUSED, stored=stored, kept="nothing",
                        parameters=count, num_bytes=0, is_exact=True)  # fmt: skip
    estimate = None if plain and _is_plain_table(purpose, how) else _estimate(layer, purpose, how)
    if estimate is None and not plain:
        count = values_by_name(layer.name, how.model) or max(
            header.num_values for header in layer.tensors.values()
        )
        return _Weighed(layer=layer, purpose=purpose, stored=stored, kept="about as stored",
                        parameters=count, num_bytes=layer.num_bytes, is_exact=False,
                        activations=NOT_TOLD)  # fmt: skip
    if estimate is None:
        return _plain(layer, purpose, stored, how)
    biases = layer.tensors["bias"].num_values if "bias" in layer.tensors else 0
    return _Weighed(
        layer=layer,
        purpose=purpose,
        stored=stored,
        kept=estimate.format,
        parameters=estimate.num_values + biases,
        num_bytes=estimate.num_bytes + biases * BYTES[how.model.dtype],
        is_exact=True,
        outputs=estimate.outputs,
        row_bytes=(estimate.num_bytes - estimate.shared_bytes) // max(1, estimate.outputs),
        shared_bytes=estimate.shared_bytes,
        activations=of_layer(estimate, "", how) if _multiplies(layer, purpose, how) else "",
    )


def _is_plain_table(purpose: str, how: How) -> bool:
    """Return whether a full-precision layer is never passed to the quantization method."""
    if purpose == EMBEDDING:
        return not (how.is_tied and how.is_own)
    return purpose == HEAD and not how.is_own


def _estimate(layer: StoredLayer, purpose: str, how: How) -> StorageEstimate | None:
    """Return the quantization method's estimate.

    A table that is also the head is passed under the head's name. None if the method fails on
    tensors that are not its own.
    """
    if how.method is None:
        return None
    is_head = purpose == EMBEDDING and how.is_tied and "position" not in layer.name
    named = replace(layer, name=HEAD_NAME) if is_head else layer
    try:
        return how.method.memory_estimate(named, packs=how.packs)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        log.debug("%s: %s tells nothing: %r", layer.name, type(how.method).__name__, error)
        return None


def _plain(layer: StoredLayer, purpose: str, stored: str, how: How) -> _Weighed:
    """Return a full-precision layer: matrices in the weights' type, the rest in the computation
    type."""
    matrix = how.matrix_dtype(purpose)
    num_bytes = 0
    for header in layer.tensors.values():
        dtype = matrix if len(header.shape) >= 2 else how.model.dtype
        num_bytes += header.num_values * BYTES[dtype]
    is_vector = all(len(header.shape) < 2 for header in layer.tensors.values())
    outputs, inputs = _packed_shape(layer, purpose, how)
    return _Weighed(
        layer=layer,
        purpose=purpose,
        stored=stored,
        kept=how.model.dtype if is_vector else matrix,
        parameters=sum(header.num_values for header in layer.tensors.values()),
        num_bytes=num_bytes,
        is_exact=True,
        outputs=outputs,
        row_bytes=inputs * BYTES[matrix],
        activations=of_layer(None, matrix, how) if _multiplies(layer, purpose, how) else "",
    )


def _multiplies(layer: StoredLayer, purpose: str, how: How) -> bool:
    """Return whether a layer is multiplied by activations. Tables are only if they are the head."""
    if purpose == EMBEDDING:
        return how.is_tied and "position" not in layer.name
    return any(len(header.shape) >= 2 for header in layer.tensors.values())


def _packed_shape(layer: StoredLayer, purpose: str, how: How) -> tuple[int, int]:
    """Return (outputs, inputs) of a plain matrix used in products; zeros for a lookup table, and
    for anything but a matrix."""
    weight = layer.tensors.get("weight")
    if weight is None or len(weight.shape) != 2:
        return 0, 0
    if purpose in (EMBEDDING, HEAD):
        is_head = purpose == HEAD or (how.is_tied and "position" not in layer.name)
        if not is_head or not how.is_own:
            return 0, 0
    return weight.shape[0], weight.shape[1]


def _fused_name(name: str, how: How) -> str:
    """Return the fused layer that a matrix becomes part of, by the usual names."""
    holder, _, leaf = name.rpartition(".")
    return f"{holder}.{_FUSED_AS.get(leaf, leaf)}" if how.is_own else name


def _as_one(parts: list[_Weighed], panel_outputs: int) -> list[_Weighed]:
    """Return the parts of one matrix. Shared bytes are counted once, and the first part includes
    the padding of the last panel."""
    first, rest = parts[0], parts[1:]
    rest = [replace(one, num_bytes=one.num_bytes - one.shared_bytes) for one in rest]
    outputs = sum(one.outputs for one in parts)
    if panel_outputs and all(one.outputs for one in parts):
        more = -outputs % panel_outputs * first.row_bytes
        first = replace(first, num_bytes=first.num_bytes + more)
    return [first, *rest]


def _stored_as(layer: StoredLayer) -> str:
    """Return the type of the layer's largest tensor."""
    largest = max(layer.tensors.values(), key=lambda header: header.num_bytes)
    leaf = largest.name.rpartition(".")[2]
    is_told = leaf in ("weight", "bias") or largest.dtype in FLOATS
    return largest.dtype if is_told else f"{largest.dtype} {leaf}"
