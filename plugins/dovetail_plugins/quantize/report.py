"""Report: the error of every quantized matrix, and the error of its layer's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dovetail.interfaces.quantizer import Inputs, Quantized
from dovetail_plugins.quantize.plan import block_name


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerError:
    """Relative errors: the root of the summed squared differences over that of the values.
    `outputs` is None if the layer got no tokens. `tokens` is how many tokens of the text it got;
    None without a text, and for layers outside the blocks."""

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    weights: float
    outputs: float | None
    tokens: int | None


def error_of(
    name: str, weight: torch.Tensor, done: Quantized, inputs: Inputs | None, tokens: int | None
) -> LayerError:
    """Return the errors of one matrix over a number of tokens. Shapes: weight [O, I]"""
    wrong = done.meant.float() - weight
    outputs = None
    if inputs is not None:
        outputs = _share(_energy(wrong, inputs.gram), _energy(weight, inputs.gram))
    return LayerError(
        name=name,
        shape=tuple(weight.shape),
        num_bytes=sum(tensor.nbytes for tensor in done.tensors.values()),
        weights=_share(float(wrong.square().sum()), float(weight.square().sum())),
        outputs=outputs,
        tokens=tokens,
    )


def _energy(weight: torch.Tensor, gram: torch.Tensor) -> float:
    """Return the mean of |W x|^2 over the inputs: the trace of W (x x^T) W^T. If `gram` is only its
    diagonal, inputs are taken to be independent of each other."""
    if gram.dim() == 1:
        return float((weight.square() @ gram).sum())
    return max(0.0, float(((weight @ gram) * weight).sum()))


def _share(wrong: float, all_of_it: float) -> float:
    return float((wrong / all_of_it) ** 0.5) if all_of_it > 0 else 0.0


def lines(errors: Sequence[LayerError]) -> list[str]:
    """Return the report as text: a line per block, with its worst matrix."""
    blocks: dict[str, list[LayerError]] = {}
    for one in errors:
        blocks.setdefault(block_name(one.name), []).append(one)
    has_outputs = any(one.outputs is not None for one in errors)
    width = max(len(name) for name in blocks)
    head = "error of weights" + (", of outputs" if has_outputs else "")
    report_lines = [f"{'':{width}}  {head} (worst matrix)"]
    for name, members in blocks.items():
        weights = _mean([one.weights for one in members])
        outputs = [one.outputs for one in members if one.outputs is not None]
        worst = max(members, key=lambda one: (one.outputs or 0.0, one.weights))
        own = worst.name.removeprefix(name).strip(".")
        text = f"{name:{width}}  {weights:16.3%}"
        text += f"  {_mean(outputs):10.3%}" if outputs else ""
        report_lines.append(f"{text}  {f'({own})' if own else ''}".rstrip())
    return report_lines


def by_reason(whole: Mapping[str, str]) -> dict[str, list[str]]:
    """Return reason -> the matrices that stayed unquantized for it."""
    found: dict[str, list[str]] = {}
    for name, reason in whole.items():
        found.setdefault(reason, []).append(name)
    return found


def rare(errors: Sequence[LayerError], min_tokens: int) -> list[str]:
    """Return the experts that got fewer tokens than `min_tokens`, with their counts."""
    found: dict[str, int] = {}
    for one in errors:
        if one.tokens is not None and one.tokens < min_tokens:
            found.setdefault(one.name.rpartition(".")[0], one.tokens)
    return [f"{name} ({tokens} tokens)" for name, tokens in found.items()]


def _mean(shares: Sequence[float]) -> float:
    """Return the root of the mean square."""
    return float((sum(share * share for share in shares) / max(len(shares), 1)) ** 0.5)


def as_data(errors: Sequence[LayerError]) -> list[dict[str, Any]]:
    """Return the report as plain data."""
    return [asdict(one) for one in errors]
